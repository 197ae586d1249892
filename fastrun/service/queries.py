"""Reads the queries.sql of a service: all its SQL, each statement with a name and a sentence."""

import re
from importlib.resources import files

_HEAD = re.compile(r"^-- name: (?P<name>[a-z_]+): (?P<sentence>.+\.)$", re.MULTILINE)


def parse(text: str) -> dict[str, str]:
    """The statements of a file by name.

    Raises:
        ValueError: a name stands twice, or a head is not `-- name: NAME: SENTENCE.`
    """
    heads = list(_HEAD.finditer(text))
    if len(heads) != len(re.findall(r"^-- name:", text, re.MULTILINE)):
        raise ValueError("a query's head must read `-- name: NAME: SENTENCE.`")
    ends = [head.start() for head in heads[1:]] + [len(text)]
    statements: dict[str, str] = {}
    for head, end in zip(heads, ends, strict=True):
        name = head["name"]
        if name in statements:
            raise ValueError(f"two queries are named {name}")
        statements[name] = text[head.end() : end].strip().removesuffix(";")
    return statements


def load(package: str) -> dict[str, str]:
    """The statements of a service, such as `auth_service`, by name."""
    return parse((files(package) / "queries.sql").read_text(encoding="utf-8"))
