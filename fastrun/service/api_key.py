"""What an API key looks like: `fr_`, 32 random characters, and a checksum that catches typos."""

import re
import string
import zlib
from hashlib import sha256
from random import Random
from typing import Final

ALPHABET: Final = string.digits + string.ascii_uppercase + string.ascii_lowercase

# What scanners for leaked secrets look for; `well_formed` then tells a key from chance.
PATTERN: Final = r"fr_[0-9A-Za-z]{38}"

PREFIX_LENGTH: Final = 8

_START = "fr_"
_RANDOM_LENGTH = 32
_CHECKSUM_LENGTH = 6
_KEY = re.compile(PATTERN)


def generate(random: Random) -> str:
    """A new key of 190 random bits.

    Args:
        random: a source fit for secrets, such as `secrets.SystemRandom()`.
    """
    body = _START + random_text(random, _RANDOM_LENGTH)
    return body + checksum(body)


def random_text(random: Random, length: int) -> str:
    """`length` random letters and digits."""
    return "".join(random.choice(ALPHABET) for _ in range(length))


def well_formed(key: str) -> bool:
    """Whether this may be a key: False for typos and junk, without a hash or a query."""
    if not _KEY.fullmatch(key):
        return False
    return checksum(key[:-_CHECKSUM_LENGTH]) == key[-_CHECKSUM_LENGTH:]


def key_sha256(key: str) -> bytes:
    """The 32 bytes by which services speak of a key, so that the key itself stays where it is."""
    return sha256(key.encode()).digest()


def display_prefix(key: str) -> str:
    """The key's first characters, by which its owner tells it from others."""
    return key[:PREFIX_LENGTH]


def checksum(body: str) -> str:
    """The 6 characters that follow a text, so that a typo in it is seen: its CRC32 in base 62."""
    number = zlib.crc32(body.encode())
    digits = ""
    for _ in range(_CHECKSUM_LENGTH):  # 62^6 > 2^32
        number, digit = divmod(number, len(ALPHABET))
        digits = ALPHABET[digit] + digits
    return digits
