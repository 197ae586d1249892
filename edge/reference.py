"""GET /openapi.json, /openapi.yaml and /docs: what this server promises."""

import json
from importlib.metadata import version

from aiohttp import web

from edge.exchange import Exchange
from edge.openapi import openapi
from edge.reference_page import reference_page
from edge.yaml_text import to_yaml


class Reference:
    """Serves the three, which are made once."""

    def __init__(self) -> None:
        document = openapi(version("fastrun"))
        self._json = json.dumps(document, indent=2, ensure_ascii=False).encode()
        self._yaml = to_yaml(document).encode()
        self._page = reference_page(document)

    async def json(self, exchange: Exchange) -> web.StreamResponse:
        """Answer with the OpenAPI document."""
        return exchange.json(self._json)

    async def yaml(self, exchange: Exchange) -> web.StreamResponse:
        """Answer with the same, as YAML."""
        return exchange.yaml(self._yaml)

    async def page(self, exchange: Exchange) -> web.StreamResponse:
        """Answer with the reference page."""
        return exchange.html(self._page)
