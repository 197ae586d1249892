"""Pictures of the diagrams that pages have in Mermaid: forges draw those, the site shows pictures.

    python docs/site/diagrams.py       # draws what has changed: see CONTRIBUTING.md

A picture has the digest of the text that it shows in its name, so that none is out of date.
"""

import re
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

LANGUAGE = "mermaid"
ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "site" / "diagrams"


def diagrams_of(page: str) -> Iterator[str]:
    """Yield the text of each diagram of a page in Markdown."""
    for found in re.finditer(rf"^```{LANGUAGE}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        yield found[1].rstrip("\n")


def picture_of(diagram: str) -> Path:
    """Name the file that shows a diagram, whether it is there or not."""
    return PICTURES / f"{sha256(diagram.encode()).hexdigest()[:16]}.svg"


def pages() -> Iterator[Path]:
    """Yield the pages that may have diagrams."""
    yield from ROOT.glob("*.md")
    yield from (ROOT / "docs").rglob("*.md")


def main() -> None:
    """Draw the diagrams that have no picture, and take pictures away that show none."""
    from mermaidx import Diagram  # noqa: PLC0415 - not for those who only read how it is named

    diagrams = [each for page in pages() for each in diagrams_of(page.read_text(encoding="utf-8"))]
    PICTURES.mkdir(exist_ok=True)
    for diagram in diagrams:
        picture = picture_of(diagram)
        if not picture.exists():
            # Seen on a page that may be dark.
            svg = Diagram(diagram, theme="neutral").svg().replace("transparent", "white", 1)
            picture.write_text(svg, encoding="utf-8")
    for picture in PICTURES.glob("*.svg"):
        if picture not in map(picture_of, diagrams):
            picture.unlink()


if __name__ == "__main__":
    main()
