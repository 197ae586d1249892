"""How likely each token was, in the two shapes in which clients read it."""

import codecs
from collections.abc import Iterable

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


def _text(token: bytes) -> str:
    """Part of a character is no text by itself, and two parts must not look alike."""
    return token.decode("utf-8", "backslashreplace")
