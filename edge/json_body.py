"""From the bytes of a request to one JSON object, or a refusal that says what is wrong."""

import re
from typing import Any

import msgspec

from edge.errors import invalid

_BOM = b"\xef\xbb\xbf"
# Possessive, so that no input makes it go back.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def parse_object(body: bytes, *, depth_limit: int) -> dict[str, Any]:
    """Parse a body that has to be a JSON object; of a key that comes twice the last one counts.

    Raises:
        Refusal: it is not JSON (RFC 8259, UTF-8), not an object, or nested too deeply.
    """
    body = body.removeprefix(_BOM)
    if not body.strip():
        raise invalid("the body is empty: send a JSON object")
    if nested_deeper(body, depth_limit):
        raise invalid(f"the body is nested deeper than {depth_limit} levels")
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise invalid(f"the body is not valid JSON: {_cause(error)}") from None
    if not isinstance(value, dict):
        raise invalid("the body must be a JSON object")
    return value


def nested_deeper(body: bytes, limit: int) -> bool:
    """Tell whether arrays and objects lie in each other more than ``limit`` deep.

    Of what is not JSON it may say either.
    """
    if body.count(b"[") + body.count(b"{") <= limit:
        return False
    depth = 0
    for bracket in _STRING.sub(b"", body).translate(None, _NOT_BRACKETS):
        if bracket in b"[{":
            depth += 1
            if depth > limit:
                return True
        else:
            depth -= 1
    return False


def _cause(error: Exception) -> str:
    """What the parser says; it names positions, never content."""
    if isinstance(error, RecursionError):
        return "nested too deeply"
    text = str(error).removeprefix("JSON is malformed: ").partition(" - at ")[0]
    return text[:1].lower() + text[1:]
