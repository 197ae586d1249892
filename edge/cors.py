"""Which web pages may call from a browser, and how they are told."""

import re
from collections.abc import Collection

from edge import rate_limits

ANY = "*"
MAX_AGE_S = 600

_HEADER_NAMES = re.compile(r"[\w-]+(?:\s*,\s*[\w-]+)*", re.ASCII)
_EXPOSED = ", ".join(("X-Request-Id", "Retry-After", *rate_limits.NAMES))
_USUAL = "Authorization, Content-Type"


class Cors:
    """Answers pages of the configured origins; without any it says nothing to anyone."""

    def __init__(self, origins: Collection[str]) -> None:
        self._origins = frozenset(origins)

    def headers(self, origin: str | None) -> dict[str, str]:
        """Headers of every answer to a request with this Origin header."""
        if not self._origins:
            return {}
        if ANY in self._origins:
            return {"Access-Control-Allow-Origin": ANY, "Access-Control-Expose-Headers": _EXPOSED}
        if origin not in self._origins:
            return {"Vary": "Origin"}
        return {
            "Access-Control-Allow-Origin": origin,
            "Access-Control-Expose-Headers": _EXPOSED,
            "Vary": "Origin",
        }

    def preflight(self, methods: str, wanted_headers: str | None) -> dict[str, str]:
        """Further headers of the answer to a browser that asks before it calls.

        Args:
            methods: that the path has, as in the Allow header.
            wanted_headers: that it means to send, as it says.
        """
        if not self._origins:
            return {}
        # A star would not do: it does not stand for Authorization.
        known = wanted_headers and _HEADER_NAMES.fullmatch(wanted_headers.strip())
        return {
            "Access-Control-Allow-Methods": methods,
            "Access-Control-Allow-Headers": known.group() if known else _USUAL,
            "Access-Control-Max-Age": str(MAX_AGE_S),
        }
