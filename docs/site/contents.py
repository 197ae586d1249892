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
    "Look up": ("docs/reference/README",),
    "Understand": ("ARCHITECTURE", "docs/reliability", "docs/performance", "docs/decisions/README"),
    "Change": ("CONTRIBUTING", "SECURITY", "CHANGELOG", "tests/standin/README"),
}
# These have more pages below them, after an option that says how: a page that is not in git can be
# linked to by the site alone.
BELOW: Mapping[str, Sequence[str]] = {
    "docs/decisions/README": (":hidden:", "docs/decisions/*"),
    "docs/reference/README": (":titlesonly:", "docs/reference/api", "docs/reference/*"),
}


def toctrees(page: str) -> Iterator[str]:
    """Yield what a page gets at its end, so that Sphinx knows what comes below it.

    Args:
        page: path from the root of the repository, without its ending.
    """
    if page == "README":
        for caption, pages in CONTENTS.items():
            yield _toctree(f":hidden:\n:caption: {caption}", pages)
    elif page in BELOW:
        option, *pages = BELOW[page]
        yield _toctree(option, pages)


def _toctree(options: str, pages: Sequence[str]) -> str:
    names = "\n".join(f"/{page}" for page in pages)
    return f"\n```{{toctree}}\n:glob:\n{options}\n\n{names}\n```\n"
