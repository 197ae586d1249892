"""Writes JSON values as YAML 1.2, in blocks: enough for a document that people read."""

import json
import re
from collections.abc import Iterator
from typing import Any

_PLAIN = re.compile(r"[A-Za-z][\w.-]*", re.ASCII)
# What older readers take for something else than text.
_RESERVED = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}


def to_yaml(value: Any) -> str:
    """Write a value; strings stand as in JSON, which YAML 1.2 reads."""
    return "\n".join(_lines(value)) + "\n"


def _lines(value: Any) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _entry(f"{_key(key)}:", inner)
    elif isinstance(value, list) and value:
        for inner in value:
            yield from _entry("-", inner)
    else:
        yield _scalar(value)


def _entry(head: str, inner: Any) -> Iterator[str]:
    if isinstance(inner, dict | list) and inner:
        yield head
        yield from ("  " + line for line in _lines(inner))
    else:
        yield f"{head} {_scalar(inner)}"


def _key(key: str) -> str:
    is_plain = _PLAIN.fullmatch(key) and key.lower() not in _RESERVED
    return key if is_plain else _scalar(key)


def _scalar(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
