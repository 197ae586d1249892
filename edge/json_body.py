"""From the bytes of a request to one JSON object, or a refusal that says what is wrong."""

import re
from typing import Any

import msgspec

from edge.errors import invalid

# Far over any real request; without it a body of nothing but brackets takes seconds.
MOST_CONTAINERS = 100_000

_BOM = b"\xef\xbb\xbf"
_FIRST_HALF = re.compile(rb"\\u[dD][89abAB]..(?!\\u)", re.DOTALL)
_NOT_MARKS = bytes(set(range(256)) - set(b'[]{}"'))


def parse_object(body: bytes, *, depth_limit: int) -> dict[str, Any]:
    """Parse a body that has to be a JSON object; of a key that comes twice the last one counts.

    Raises:
        Refusal: it is not JSON (RFC 8259, UTF-8), not an object, or nested too deeply.
    """
    body = body.removeprefix(_BOM)
    if not body or body.isspace():
        raise invalid("the body is empty: send a JSON object")
    _check_nesting(body, depth_limit)
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise invalid(f"the body is not valid JSON: {_cause(error, body)}") from None
    if not isinstance(value, dict):
        raise invalid("the body must be a JSON object")
    return value


def _check_nesting(body: bytes, depth_limit: int) -> None:
    """Refuse what would be costly to parse; of what is not JSON it may say either."""
    if body.count(b"[") + body.count(b"{") <= depth_limit:
        return
    brackets = _brackets(body)
    if len(brackets) > 2 * MOST_CONTAINERS:
        raise invalid(f"the body holds more than {MOST_CONTAINERS} arrays and objects")
    depth = 0
    for bracket in brackets:
        if bracket in b"[{":
            depth += 1
            if depth > depth_limit:
                raise invalid(f"the body is nested deeper than {depth_limit} levels")
        else:
            depth -= 1


def _brackets(body: bytes) -> bytes:
    """Return the brackets that stand in no string.

    Each step goes through the bytes once, whatever they are, and lets other threads run after it.
    """
    unescaped = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    marks = unescaped.translate(None, _NOT_MARKS)
    # Taking out pairs of quotes changes for no bracket whether it stands in a string.
    return b"".join(marks.replace(b'""', b"").split(b'"')[::2])


def _cause(error: Exception, body: bytes) -> str:
    """What the parser says; it names positions, never content."""
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if "truncated" in str(error) and _FIRST_HALF.search(body):
        return "half of a surrogate pair stands alone"  # where the parser misses the other one
    text = str(error).removeprefix("JSON is malformed: ").partition(" - at ")[0]
    return text[:1].lower() + text[1:]
