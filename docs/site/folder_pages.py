"""Sphinx's HTML with a folder's README.md as its first page, as forges show it."""

from pathlib import Path
from urllib.parse import quote

from sphinx.application import Sphinx
from sphinx.builders.html import StandaloneHTMLBuilder


class FolderPages(StandaloneHTMLBuilder):
    """Writes README.md of each folder to index.html."""

    name = "folders"

    def get_target_uri(self, docname: str, typ: str | None = None) -> str:  # noqa: ARG002 - Sphinx's
        """Say where a page is linked to."""
        return quote(_index(docname)) + self.link_suffix

    def get_output_path(self, page_name: str, /) -> Path:
        """Say where a page is written."""
        return super().get_output_path(_index(page_name))


def setup(app: Sphinx) -> None:
    """Sphinx calls this: it looks for builders in extensions before it reads its settings."""
    app.add_builder(FolderPages)


def _index(page: str) -> str:
    folder, _, name = page.rpartition("/")
    if name != "README":
        return page
    return f"{folder}/index" if folder else "index"
