"""The order in which the site shows its pages. A page that no line names makes the build fail."""

from collections.abc import Iterator, Mapping, Sequence

CONTENTS: Mapping[str, Sequence[str]] = {
    "Start": ("docs/README", "docs/quickstart"),
    "Use": ("docs/guides/README", "docs/guides/*"),
    "Operate": (
        "docs/operating/README",
        "docs/operating/compose",
        "docs/operating/accounts",
        "docs/operating/security",
        "docs/operating/models",
        "docs/operating/model-families",
        "docs/operating/gpu",
        "docs/operating/many-machines",
        "docs/operating/kubernetes",
        "docs/operating/fleet",
        "docs/operating/schedulers",
        "docs/operating/scaling",
        "docs/operating/placement",
        "docs/operating/*",
    ),
    "Look up": ("docs/reference/README", "docs/reference/*"),
    "Understand": ("ARCHITECTURE", "docs/reliability", "docs/performance", "docs/decisions/README"),
    "Change": ("CONTRIBUTING", "CHANGELOG", "tests/standin/README"),
}
# These have more pages below them.
BELOW: Mapping[str, Sequence[str]] = {
    "docs/decisions/README": ("docs/decisions/*",),
}


def toctrees(page: str) -> Iterator[str]:
    """Yield what a page gets at its end, so that Sphinx knows what comes below it.

    Args:
        page: path from the root of the repository, without its ending.
    """
    if page == "README":
        yield from (_toctree(names, caption) for caption, names in CONTENTS.items())
    elif page in BELOW:
        yield _toctree(BELOW[page], "")


def _toctree(names: Sequence[str], caption: str) -> str:
    options = [":hidden:", ":glob:", *([f":caption: {caption}"] if caption else [])]
    return "\n".join(["", "```{toctree}", *options, "", *(f"/{name}" for name in names), "```", ""])
