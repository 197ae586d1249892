"""Text to token ids and token ids to bytes, by a model's tokenizer.json."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import tokenizers

from gpu_worker.dialect.special_tokens import SpecialTokens

SHORT_CHARACTERS = 8 << 10  # of what is encoded in a few milliseconds
SPACE_MARK = "\u2581"  # what SentencePiece vocabularies write for a space


class TokenizerError(Exception):
    """A vocabulary that cannot be used; the message says why."""


class Tokenizer(Protocol):
    """What every tokenizer can do."""

    @property
    def vocab_size(self) -> int:
        """One more than the highest token id."""

    @property
    def longest_token_bytes(self) -> int:
        """No token stands for more bytes of UTF-8 than this."""

    @property
    def special_tokens(self) -> Mapping[str, int]:
        """Text and id of each token that only a chat template may write."""

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Return token ids; special tokens in the text are text unless ``special``."""

    def token_bytes(self, token_id: int) -> bytes:
        """Return what a token stands for; nothing for control tokens and unknown ids."""


class JsonTokenizer:
    """A tokenizer.json, run by the tokenizers package."""

    def __init__(self, text: str) -> None:
        """Load the content of a tokenizer.json.

        Raises:
            TokenizerError: it is none.
        """
        try:
            data = json.loads(text)
            added = data.get("added_tokens") or []
            self._pieces = _pieces(data["model"]["vocab"], added)
            self._controls = {token["id"] for token in added if token["special"]}
            self._added: dict[int, str] = {token["id"]: token["content"] for token in added}
            self._is_byte_level = '"ByteLevel"' in json.dumps(data.get("decoder"))
            # All of them special, so that none is found in text any more.
            data["added_tokens"] = [token | {"special": True} for token in added]
            self._plain = tokenizers.Tokenizer.from_str(json.dumps(data))
        except Exception as error:  # the package raises bare exceptions
            raise TokenizerError(f"the tokenizer.json cannot be used: {error}") from error
        self._plain.encode_special_tokens = True
        self._plain.no_truncation()
        self._plain.no_padding()
        self._special_tokens = {text: token_id for token_id, text in self._added.items()}
        self._special = SpecialTokens(self._special_tokens)
        self._bytes: list[bytes | None] = [None] * len(self._pieces)
        self._longest: int | None = None

    @classmethod
    def from_file(cls, path: Path) -> "JsonTokenizer":
        """Load a tokenizer.json.

        Raises:
            TokenizerError: it is missing or none.
        """
        try:
            return cls(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise TokenizerError(f"{path} cannot be read: {error}") from error

    @property
    def vocab_size(self) -> int:
        """One more than the highest token id."""
        return len(self._pieces)

    @property
    def longest_token_bytes(self) -> int:
        """No token stands for more bytes of UTF-8 than this."""
        if self._longest is None:
            normal = (len(self.token_bytes(token_id)) for token_id in range(self.vocab_size))
            special = (len(text.encode()) for text in self._special_tokens)
            self._longest = max(max(normal, default=1), max(special, default=1))
        return self._longest

    @property
    def special_tokens(self) -> Mapping[str, int]:
        """Text and id of each added token."""
        return MappingProxyType(self._special_tokens)

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Return token ids; special tokens in the text are text unless ``special``."""
        if not special:
            return self._encode(text)
        ids: list[int] = []
        for piece in self._special.split(text):
            ids += [piece] if isinstance(piece, int) else self._encode(piece)
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        """Return what a token stands for; nothing for control tokens and unknown ids."""
        if not 0 <= token_id < len(self._bytes):
            return b""
        known = self._bytes[token_id]
        if known is None:
            known = self._bytes[token_id] = self._decode(token_id)
        return known

    def _encode(self, text: str) -> list[int]:
        if len(text) <= SHORT_CHARACTERS:
            short: list[int] = self._plain.encode(text, add_special_tokens=False).ids
            return short
        # For a batch the package lets other threads run: encode() holds them all up, for seconds
        # where the text has megabytes, and heartbeats and streams with them.
        (encoding,) = self._plain.encode_batch_fast([text], add_special_tokens=False)
        ids: list[int] = encoding.ids
        return ids

    def _decode(self, token_id: int) -> bytes:
        if token_id in self._controls:
            return b""
        if token_id in self._added:
            return self._added[token_id].encode()
        piece = self._pieces[token_id]
        if self._is_byte_level:
            return bytes(BYTE_OF[character] for character in piece)
        if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
            return bytes([int(piece[3:5], 16)])
        return piece.replace(SPACE_MARK, " ").encode()


def _pieces(vocabulary: Mapping[str, int], added: list[dict[str, Any]]) -> list[str]:
    """List the vocabulary by id; unused ids are empty."""
    ids = [*vocabulary.values(), *(token["id"] for token in added)]
    pieces = [""] * (max(ids) + 1)
    for piece, token_id in vocabulary.items():
        pieces[token_id] = piece
    return pieces


def _byte_alphabet() -> dict[str, int]:
    """Map the characters that byte-level vocabularies are written in to bytes.

    Printable characters of Latin-1 stand for themselves, the others are numbered from U+0100 on
    (as GPT-2 began it).
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + at): byte for at, byte in enumerate(others)
    }


BYTE_OF = _byte_alphabet()
