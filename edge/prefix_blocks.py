"""The blocks of a prompt as hashes, so that a scheduler knows who has its beginning cached. Pure.

A scheduler sees no text: each hash stands for all up to the end of its block, and is keyed by the
account, so that equal ones mean equal beginnings and accounts share none. Blocks grow along a
prompt, which keeps them few; where they end depends on nothing but their number, so that what two
prompts have in common is cut alike, and a conversation's next turn has all blocks of the former.
"""

import struct
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import accumulate

import msgspec

from fastrun.v1.generation_pb2 import ChatMessage, Tool

BYTES_PER_TOKEN = 4
"""About so many has a token of English text; workers count."""
MOST_BLOCKS = 256
HASH_BYTES = 8

# Fine where most prompts differ, coarse far behind: what is behind the last is not told apart.
_SIZES = (256, 1 << 10, 4 << 10, 16 << 10)
_ENDS = tuple(accumulate(size for size in _SIZES for _ in range(MOST_BLOCKS // len(_SIZES))))
_TOKENS = tuple(end // BYTES_PER_TOKEN for end in _ENDS)

# No byte of these is part of UTF-8, so none of them is taken for text. There are no lengths: texts
# that differ at their ends would differ from the beginning.
_ROLES = b"\xf4\xf5\xf6\xf7\xf8"
_REASONING, _CONTENT, _CALL, _ARGUMENTS = b"\xf9", b"\xfa", b"\xfb", b"\xfc"
_TOOL, _DESCRIPTION, _PARAMETERS = b"\xfd", b"\xfe", b"\xff"


class PrefixBlocks(msgspec.Struct, frozen=True):
    """A prompt as schedulers see it; the last block is left out unless it is full."""

    hashes: Sequence[int] = ()
    """Of each block and all before it, 64 bits; at most MOST_BLOCKS."""
    tokens: Sequence[int] = ()
    """How many tokens the prompt has up to the end of each block, estimated."""
    prompt_tokens: int = 0
    """Of the whole prompt, estimated."""


UNKNOWN = PrefixBlocks()


def of_conversation(
    tools: Iterable[Tool], messages: Iterable[ChatMessage], *, cache_salt: str
) -> PrefixBlocks:
    """Cut a conversation: tools first, then messages, as templates render them."""
    return _cut(b"".join((*map(_tool, tools), *map(_message, messages))), cache_salt)


def of_prompts(prompts: Sequence[str], *, cache_salt: str) -> PrefixBlocks:
    """Cut a raw text; of several that differ only the mean length is told."""
    if any(prompt != prompts[0] for prompt in prompts):
        size = sum(len(prompt.encode()) for prompt in prompts)
        return PrefixBlocks(prompt_tokens=tokens_of(size // len(prompts)))
    return _cut(prompts[0].encode(), cache_salt)


def tokens_of(size: int) -> int:
    """Estimate how many tokens so many bytes of text have."""
    return -(-size // BYTES_PER_TOKEN)


def _tool(tool: Tool) -> bytes:
    name, description = tool.name.encode(), tool.description.encode()
    parameters = tool.parameters_json_schema.encode()
    return b"".join((_TOOL, name, _DESCRIPTION, description, _PARAMETERS, parameters))


def _message(message: ChatMessage) -> bytes:
    parts = [_ROLES[message.role : message.role + 1]]
    if message.reasoning:
        parts += (_REASONING, message.reasoning.encode())
    parts += (_CONTENT, message.content.encode())
    for call in message.tool_calls:
        parts += (_CALL, call.name.encode(), _ARGUMENTS, call.arguments.encode())
    return b"".join(parts)


def _cut(text: bytes, cache_salt: str) -> PrefixBlocks:
    key = cache_salt.encode()
    if len(key) > blake2b.MAX_KEY_SIZE:
        key = blake2b(key).digest()
    state = blake2b(key=key, digest_size=HASH_BYTES)
    size, start = len(text), 0
    digests = []
    for end in _ENDS:
        if end > size:
            break
        state.update(text[start:end])
        digests.append(state.digest())
        start = end
    count = len(digests)
    hashes = struct.unpack(f"<{count}Q", b"".join(digests))
    return PrefixBlocks(hashes, _TOKENS[:count], tokens_of(size))
