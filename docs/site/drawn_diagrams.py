"""Sphinx's pages with the picture of a diagram in place of its text."""

import diagrams
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform
from sphinx.util.logging import getLogger

log = getLogger(__name__)


class DrawnDiagrams(SphinxTransform):
    """Replaces each diagram; one without a picture is left, and a warning."""

    default_priority = 400  # before Sphinx collects the images of a page

    def apply(self, **_: object) -> None:
        """See SphinxTransform."""
        for block in list(self.document.findall(nodes.literal_block)):
            if block.get("language") == diagrams.LANGUAGE:
                self._replace(block)

    def _replace(self, block: nodes.literal_block) -> None:
        text = block.astext().rstrip("\n")
        picture = diagrams.picture_of(text)
        if not picture.exists():
            log.warning("a diagram has no picture: draw it (CONTRIBUTING.md)", location=block)
            return
        where = f"/{picture.relative_to(diagrams.ROOT).as_posix()}"
        # Who cannot see it gets the text, which is legible as it is.
        block.replace_self(nodes.image(uri=where, alt=text))


def setup(app: Sphinx) -> None:
    """Let Sphinx use it."""
    app.add_transform(DrawnDiagrams)
