"""Which path is served by whom, and what is said about a path that is not."""

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from aiohttp import web

from edge.errors import Refusal
from edge.exchange import Exchange

Endpoint = Callable[[Exchange], Awaitable[web.StreamResponse]]

# What other APIs have in place of a path of ours.
_OTHER_WAYS = {
    "/responses": "/v1/chat/completions",
    "/messages": "/v1/chat/completions",
    "/api/chat": "/v1/chat/completions",
    "/api/generate": "/v1/completions",
    "/api/tags": "/v1/models",
}
_SLASHES = re.compile(r"/{2,}")


@dataclass(frozen=True, slots=True)
class Route:
    """One path and what can be done there."""

    name: str
    """For metrics and logs."""
    endpoints: Mapping[str, Endpoint]
    """By method."""

    @property
    def methods(self) -> str:
        """As the Allow header lists them."""
        return ", ".join(sorted({*self.endpoints, "OPTIONS"}))


class Routes:
    """Finds the route of a path. One that ends in a slash stands for all that lies below it."""

    def __init__(self, table: Mapping[str, Route]) -> None:
        self._table = table

    def find(self, path: str) -> Route:
        """Return the route of a path; neither doubled nor trailing slashes matter.

        Raises:
            Refusal: 404, with the right path where it can be guessed.
        """
        path = _SLASHES.sub("/", path).rstrip("/") or "/"
        route = self._table.get(path)
        if route is not None:
            return route
        for prefix, below in self._table.items():
            if prefix != "/" and prefix.endswith("/") and path.startswith(prefix):
                return below
        raise Refusal(404, self._hint(path), reason="no_such_path")

    def _hint(self, path: str) -> str:
        """Say what to do, without the path: people paste keys and prompts into it."""
        meant = self._meant(path)
        if meant:
            return f"there is no such path, use {meant}"
        return "there is no such path, GET / lists what there is"

    def _meant(self, path: str) -> str | None:
        """Guess the path for which this one was sent."""
        for other, meant in _OTHER_WAYS.items():
            if path.endswith(other):
                return meant
        for each in self._table:
            below = each.removeprefix("/v1")
            if below == each:
                continue
            if path.endswith(below):
                return each
            if below.endswith("/") and below in path:
                return f"{each}MODEL"
        return None


def endpoint_of(route: Route, method: str) -> Endpoint:
    """Return what serves a method.

    Raises:
        Refusal: 405.
    """
    endpoint = route.endpoints.get(method)
    if endpoint is None:
        raise Refusal(405, f"use {route.methods} here", headers={"Allow": route.methods})
    return endpoint
