"""Conversations as Mistral's templates take them.

Mistral's own library does the same before it writes a prompt (``protocol/instruct/normalize.py``
and ``validator.py`` in mistral-common at bc022b9): what a user says in a row is one message, system
texts stand in the last user message where there is no other place for them (up to tokenizer v3),
results stand in the order of their calls, for that is how later models tell which is which, and
ids of calls have nine letters and digits.
"""

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b

import msgspec

from gpu_worker.dialect.messages import THOUGHTS, Message
from gpu_worker.dialect.template_traits import with_parts

Chunk = Mapping[str, str]
"""Part of a content: ``type`` is ``text`` or ``thinking``, which also names the other key."""

ID_LENGTH = 9
_ID = re.compile(f"[a-zA-Z0-9]{{{ID_LENGTH}}}")
_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


class History(msgspec.Struct, frozen=True, kw_only=True):
    """What a template takes of a history."""

    takes_systems: bool = True  # as messages of their own
    takes_thoughts: bool = False  # as chunks of a content
    takes_text_before_calls: bool = True
    takes_texts: bool = True  # as contents; otherwise lists of chunks alone
    results_are_json: bool = False  # it writes them into JSON as they are
    # To think as the model has learned it: what stands in its template's own system message. The
    # template writes that only where the conversation has none.
    instructions: tuple[Chunk, ...] = ()
    begins_thought: str = ""  # a marker; who writes it into a system message gives instructions too

    def with_systems(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return messages with the system texts where the template takes them."""
        return messages if self.takes_systems else _in_last_user(messages)

    def written(self, messages: Iterable[Message], *, thinks: bool) -> list[Message]:
        """Return messages that the template takes.

        Args:
            messages: in OpenAI's shape.
            thinks: the model is asked to.
        """
        written = [self._shaped(_with_short_ids(each)) for each in _in_order(_merged(messages))]
        if thinks and self.instructions:
            written = self._instructed(written)
        return written if self.takes_texts else [with_parts(message) for message in written]

    def _shaped(self, message: Message) -> Message:
        if message.get("tool_calls") and not self.takes_text_before_calls:
            message = {**message, "content": ""}
        if message["role"] == "tool" and self.results_are_json:
            message = {**message, "content": _as_json(message["content"])}
        thought = message.get("reasoning")
        if not (thought and self.takes_thoughts):
            return message
        said = [_text(message["content"])] if message["content"] else []
        rest = {key: value for key, value in message.items() if key not in THOUGHTS}
        return {**rest, "content": [{"type": "thinking", "thinking": thought}, *said]}

    def _instructed(self, messages: list[Message]) -> list[Message]:
        """Put the instructions before the first system message."""
        systems = [place for place, each in enumerate(messages) if each["role"] == "system"]
        if not systems or any(self.begins_thought in messages[at]["content"] for at in systems):
            return messages
        place = systems[0]
        *before, last = self.instructions
        own = f"\n\n{messages[place]['content']}"
        if last["type"] == "text":
            chunks = [*before, _text(last["text"] + own)]
        else:
            chunks = [*before, last, _text(own)]
        content = chunks[0]["text"] if len(chunks) == 1 else chunks
        said = {**messages[place], "content": content}
        return [*messages[:place], said, *messages[place + 1 :]]


def short_id(text: str) -> str:
    """Return the id of a call in nine letters and digits; the same text has the same."""
    if _ID.fullmatch(text):
        return text
    digest = blake2b(text.encode(errors="surrogatepass"), digest_size=ID_LENGTH).digest()
    return "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in digest)


def _in_last_user(messages: Sequence[Message]) -> Sequence[Message]:
    text = _joined(message["content"] for message in messages if message["role"] == "system")
    others = [message for message in messages if message["role"] != "system"]
    users = [place for place, message in enumerate(others) if message["role"] == "user"]
    if not text:
        return others
    if not users:
        return [{"role": "user", "content": text}, *others]
    last = users[-1]
    said = {**others[last], "content": _joined((text, others[last]["content"]))}
    return [*others[:last], said, *others[last + 1 :]]


def _merged(messages: Iterable[Message]) -> list[Message]:
    """Make one message of several in a row by a user."""
    merged: list[Message] = []
    for message in messages:
        if merged and merged[-1]["role"] == message["role"] == "user":
            texts = (merged[-1]["content"], message["content"])
            merged[-1] = {**message, "content": _joined(texts)}
        else:
            merged.append(message)
    return merged


def _in_order(messages: Iterable[Message]) -> Iterator[Message]:
    """Sort results by the calls before them."""
    places: dict[str, int] = {}
    for role, group in itertools.groupby(messages, key=lambda message: message["role"]):
        if role == "tool":
            yield from sorted(group, key=lambda result: places.get(_id(result), len(places)))
            continue
        for message in group:
            places = {call["id"]: at for at, call in enumerate(message.get("tool_calls", ()))}
            yield message


def _with_short_ids(message: Message) -> Message:
    if message["role"] == "tool":
        return {**message, "tool_call_id": short_id(_id(message))}
    if calls := message.get("tool_calls"):
        return {**message, "tool_calls": [{**call, "id": short_id(call["id"])} for call in calls]}
    return message


def _id(result: Message) -> str:
    text: str = result.get("tool_call_id", "")
    return text


def _as_json(content: str) -> str:
    try:
        json.loads(content)
    except (ValueError, RecursionError):
        return json.dumps(content, ensure_ascii=False)
    return content


def _text(text: str) -> Chunk:
    return {"type": "text", "text": text}


def _joined(texts: Iterable[str]) -> str:
    return "\n\n".join(text for text in texts if text)
