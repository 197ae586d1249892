"""How Sphinx makes the site: `make docs`, see docs/decisions/0054.

The root of the repository is the source, so that links between pages are the same here and in a
checkout. Warnings are errors there: a page, an anchor or a file that is linked to has to exist.
"""

import sys
from importlib.metadata import version as version_of
from pathlib import Path

from sphinx.application import Sphinx

SITE = Path(__file__).parent
ROOT = SITE.parents[1]
sys.path.insert(0, str(SITE))

import api_reference  # noqa: E402 - they lie beside this file
import proto_reference  # noqa: E402
from contents import toctrees  # noqa: E402

project = "fastrun"
version = release = version_of("fastrun")
root_doc = "README"
include_patterns = ["*.md", "docs/*.md", "docs/**/*.md", "tests/standin/README.md"]
exclude_patterns = [".venv", "build"]
extensions = ["drawn_diagrams", "folder_pages", "myst_parser"]
# Anchors as forges make them, for headings of all levels in use.
myst_heading_anchors = 4

html_theme = "furo"
html_title = "fastrun"
html_show_sphinx = False
html_copy_source = False
html_show_copyright = False

# Where `make doclinks` would only find the reader's own machine, or a name that stands for one.
linkcheck_ignore = [r"https?://(localhost|127\.0\.0\.1)"]
linkcheck_timeout = 20


def setup(app: Sphinx) -> None:
    """Make the pages that come from sources, before Sphinx looks for pages."""
    app.connect("builder-inited", lambda _: write_references(ROOT / "docs" / "reference"))
    app.connect("source-read", _add_contents)


def write_references(folder: Path) -> None:
    """Write the pages of the API and the protos, those only that have changed."""
    pages = {"api": api_reference.render(release), **proto_reference.render(ROOT / "protos")}
    for page in folder.glob("*.md"):
        if page.stem not in ("README", *pages):
            page.unlink()  # of a proto that is no more
    for name, text in pages.items():
        page = folder / f"{name}.md"
        if not page.exists() or page.read_text(encoding="utf-8") != text:
            page.write_text(text, encoding="utf-8")


def _add_contents(_: Sphinx, page: str, source: list[str]) -> None:
    source[0] += "".join(toctrees(page))
