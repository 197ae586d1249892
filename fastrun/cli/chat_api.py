"""An OpenAI-compatible server, asked for one streamed answer at a time."""

import http.client
import json
import ssl
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from fastrun.cli.errors import CommandError, NotReachedError

# An answer may wait in a queue, and a long prompt takes its time until the first token.
SILENCE_S = 600.0
_DATA = b"data: "
_DONE = b"[DONE]"
# What reading an answer raises that is none of this API's.
_FOREIGN = (ValueError, LookupError, TypeError, AttributeError)


@dataclass(frozen=True, slots=True)
class Piece:
    """What came of an answer at once; what did not come is empty."""

    content: str = ""
    reasoning: str = ""
    finish: str = ""
    """Why it has ended: `stop` or `length`."""
    usage: Mapping[str, Any] | None = None
    """What all of it took, at its end."""


class ChatApi:
    """One server, as one of its callers.

    Args:
        base_url: ends in /v1.
        api_key: of the caller.

    Raises:
        CommandError: this is no URL.
    """

    def __init__(self, base_url: str, api_key: str) -> None:
        self._is_secure, self._host, self._port, self._path = _parts(base_url)
        if not (api_key.isascii() and api_key.isprintable()):
            raise CommandError("the API key holds a character that no key has: copy it anew")
        self.base_url = base_url.rstrip("/")
        self._headers = {
            "authorization": f"Bearer {api_key}",
            "content-type": "application/json",
            "accept-encoding": "identity",
        }

    def models(self) -> list[str]:
        """Which models it serves.

        Raises:
            CommandError: it refuses, or cannot be reached.
        """
        with closing(self._connection()) as connection:
            answer = self._ask(connection, "GET", "/models", None)
            try:
                return [each["id"] for each in json.loads(answer.read())["data"]]
            except (OSError, http.client.HTTPException, *_FOREIGN) as error:
                raise CommandError(f"{self.base_url} does not answer as an OpenAI API") from error

    def stream(
        self, messages: Sequence[Mapping[str, str]], options: Mapping[str, Any]
    ) -> Generator[Piece, None, None]:
        """Ask for an answer; closing the iterator before its end aborts it.

        Args:
            messages: the conversation so far.
            options: further fields of the request, with the model.

        Raises:
            CommandError: it refuses, or fails in between, with its own words.
        """
        body = {
            **options,
            "messages": list(messages),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        with closing(self._connection()) as connection:
            answer = self._ask(connection, "POST", "/chat/completions", json.dumps(body))
            try:
                yield from pieces(answer)
            except (OSError, http.client.HTTPException) as error:
                raise CommandError(f"the answer broke off: {error}") from error
            except _FOREIGN as error:
                raise CommandError(f"{self.base_url} does not answer as an OpenAI API") from error

    def _connection(self) -> http.client.HTTPConnection:
        if self._is_secure:
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(
                self._host, self._port, timeout=SILENCE_S, context=context
            )
        return http.client.HTTPConnection(self._host, self._port, timeout=SILENCE_S)

    def _ask(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: str | None
    ) -> http.client.HTTPResponse:
        try:
            connection.request(method, self._path + path, body, self._headers)
            answer = connection.getresponse()
        except (OSError, http.client.HTTPException, UnicodeError) as error:
            # The last: a text that cannot be a host's name.
            raise NotReachedError(
                f"nothing answers at {self.base_url} ({error}): start it with fastrun up, or say "
                "where it is with --base-url"
            ) from error
        if answer.status != http.HTTPStatus.OK:
            raise CommandError(_refusal(answer.status, answer.read(1 << 16)))
        return answer


def _parts(base_url: str) -> tuple[bool, str, int | None, str]:
    """Whether it is https, the host, the port and the path."""
    with suppress(ValueError):  # of a port, or an address in brackets
        parts = urlsplit(base_url)
        if parts.scheme in ("http", "https") and parts.hostname:
            path = parts.path.rstrip("/")
            return parts.scheme == "https", parts.hostname, parts.port, path
    raise CommandError(f"{base_url!r} is no URL such as http://127.0.0.1:8000/v1")


def pieces(lines: Iterable[bytes]) -> Iterator[Piece]:
    """Read the lines of a stream of events; pure.

    Raises:
        CommandError: it holds an error, or ends before its end.
    """
    for line in lines:
        data = line.removeprefix(_DATA).strip()
        if data == _DONE:
            return
        if line.startswith(_DATA):
            event = json.loads(data)
            if "error" in event:
                raise CommandError(str(event["error"]["message"]))
            yield _piece(event)
    raise CommandError("the answer broke off: ask again")


def _piece(event: Mapping[str, Any]) -> Piece:
    choices = event.get("choices") or [{}]  # none in that with the usage
    choice = choices[0]
    delta = choice.get("delta") or {}
    return Piece(
        content=delta.get("content") or "",
        reasoning=delta.get("reasoning") or delta.get("reasoning_content") or "",
        finish=choice.get("finish_reason") or "",
        usage=event.get("usage"),
    )


def _refusal(status: int, body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"it answers with status {status}: is this the address of an OpenAI API?"
