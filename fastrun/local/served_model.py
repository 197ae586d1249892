"""Asks an edge, as a client would, which model it serves."""

import asyncio
import http.client
import json
from urllib.parse import urlsplit

from fastrun.local.errors import LocalError

SERVING_S = 30.0
POLL_S = 0.05
HTTP_S = 5.0


async def served_model(base_url: str, api_key: str) -> str:
    """Wait until a model is served, with a key that is accepted.

    Args:
        base_url: the edge's, ending in /v1.
        api_key: a key that may call.

    Returns:
        The model's name.

    Raises:
        LocalError: none is after SERVING_S seconds, with what the edge says.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + SERVING_S
    while True:
        model, problem = await asyncio.to_thread(_ask, base_url, api_key)
        if model:
            return model
        if loop.time() > deadline:
            raise LocalError(f"no model can be asked after {SERVING_S:.0f} s: {problem}")
        await asyncio.sleep(POLL_S)


def _ask(base_url: str, api_key: str) -> tuple[str, str]:
    """Return the first model and what stands in the way of asking it; one of them is empty."""
    try:
        status, answer = _get(base_url, "/readyz", {})
        if status != http.HTTPStatus.OK:
            return "", answer.strip()
        headers = {"Authorization": f"Bearer {api_key}"}
        status, answer = _get(base_url, "/v1/models", headers)
        if status != http.HTTPStatus.OK:
            return "", str(json.loads(answer)["error"]["message"])
        models = [str(model["id"]) for model in json.loads(answer)["data"]]
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
        return "", f"the edge does not answer as it should: {error!r}"
    return (models[0], "") if models else ("", "the edge knows no model yet")


def _get(base_url: str, path: str, headers: dict[str, str]) -> tuple[int, str]:
    """Get a page; http.client knows nothing of proxies, which is right here."""
    connection = http.client.HTTPConnection(urlsplit(base_url).netloc, timeout=HTTP_S)
    try:
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        return response.status, response.read().decode(errors="replace")
    finally:
        connection.close()
