"""How likely each token was, in the two shapes in which clients read it."""

import codecs
from collections.abc import Iterable, Sequence

import msgspec

from edge.openai_replies import Logprobs, TextLogprobs, TokenLogprob, TopLogprob
from fastrun.v1 import generation_pb2


def chat_logprobs(tokens: Iterable[generation_pb2.TokenLogprob]) -> Logprobs:
    """Say it as chat completions do."""
    return Logprobs(
        content=[
            TokenLogprob(
                token=_text(each.token),
                logprob=each.logprob,
                bytes=list(each.token),
                top_logprobs=[
                    TopLogprob(token=_text(top.token), logprob=top.logprob, bytes=list(top.token))
                    for top in each.top
                ],
            )
            for each in tokens
        ]
    )


class WrittenChatLogprobs:
    """Those of a whole chat completion."""

    def __init__(self) -> None:
        self._content: list[bytes] = []

    def add(self, tokens: Iterable[generation_pb2.TokenLogprob]) -> None:
        """Write those of one token or more."""
        self._content.append(_items(chat_logprobs(tokens).content))

    def json(self) -> bytes:
        """Return all of them."""
        return _array(self._content, b'{"content":', b"}")


class TextLogprobsWriter:
    """Says it as text completions do, piece by piece of one text."""

    def __init__(self, alternatives: int) -> None:
        self._alternatives = alternatives
        self._offset = 0
        # A character counts where it is complete.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write(self, tokens: Iterable[generation_pb2.TokenLogprob]) -> TextLogprobs:
        """Say it for the next tokens."""
        texts: list[str] = []
        logprobs: list[float] = []
        tops: list[dict[str, float]] = []
        offsets: list[int] = []
        for each in tokens:
            text = _text(each.token)
            texts.append(text)
            logprobs.append(each.logprob)
            tops.append({_text(top.token): top.logprob for top in each.top} | {text: each.logprob})
            offsets.append(self._offset)
            self._offset += len(self._decoder.decode(each.token))
        return TextLogprobs(
            tokens=texts,
            token_logprobs=logprobs,
            top_logprobs=tops if self._alternatives else None,
            text_offset=offsets,
        )


class WrittenTextLogprobs:
    """Those of a whole text completion."""

    def __init__(self, alternatives: int) -> None:
        self._writer = TextLogprobsWriter(alternatives)
        self._lists: dict[str, list[bytes]] = {}

    def add(self, tokens: Iterable[generation_pb2.TokenLogprob]) -> None:
        """Write those of one token or more."""
        for name, values in msgspec.structs.asdict(self._writer.write(tokens)).items():
            if values is not None:
                self._lists.setdefault(name, []).append(_items(values))

    def json(self) -> bytes:
        """Return all of them."""
        lists = {name: msgspec.Raw(_array(written)) for name, written in self._lists.items()}
        return msgspec.json.encode(msgspec.structs.asdict(self._writer.write(())) | lists)


def _items(values: Sequence[object]) -> bytes:
    """Encode a list without its brackets."""
    return msgspec.json.encode(values)[1:-1]


def _array(written: Sequence[bytes], before: bytes = b"", after: bytes = b"") -> bytes:
    """Join lists that were encoded without their brackets: in one go, as they may have 100 MB."""
    pieces = [before, b"["]
    for each in written:
        pieces += each, b","
    if written:
        pieces.pop()
    return b"".join((*pieces, b"]", after))


def _text(token: bytes) -> str:
    """Part of a character is no text by itself, and two parts must not look alike."""
    return token.decode("utf-8", "backslashreplace")
