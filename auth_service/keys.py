"""How a key is kept: as a MAC with a pepper that is not in the database, useless without it."""

import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Self

from auth_service.errors import InvalidFieldError

SHA256_LENGTH = 32
PEPPER_LENGTH = 32
# Stands in the settings for a pepper that no key needs any more.
RETIRED = "retired"
# Not as long as a SHA-256, so that it is no key's digest.
_FINGERPRINTED = b"fingerprint"


@dataclass(frozen=True, slots=True)
class Pepper:
    """A secret of at least 32 bytes, and the number by which the database names it."""

    id: int
    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.secret) < PEPPER_LENGTH:
            raise ValueError(f"a pepper must have at least {PEPPER_LENGTH} bytes")
        if not 0 <= self.id < 1 << 15:
            raise ValueError("a pepper's id must be from 0 to 32767")

    def digest(self, key_sha256: bytes) -> bytes:
        """What is stored in place of a key: HMAC-SHA-256 of the key's SHA-256, 32 bytes.

        Raises:
            InvalidFieldError: this is no SHA-256.
        """
        if len(key_sha256) != SHA256_LENGTH:
            raise InvalidFieldError(f"key_sha256 must have {SHA256_LENGTH} bytes")
        return hmac.digest(self.secret, key_sha256, "sha256")

    def fingerprint(self) -> bytes:
        """What tells this pepper from others, 32 bytes; useless without it."""
        return hmac.digest(self.secret, _FINGERPRINTED, "sha256")


class Peppers:
    """The pepper of new keys, and those that older keys were kept with."""

    def __init__(
        self, current: Pepper, previous: Iterable[Pepper] = (), *, retired: Iterable[int] = ()
    ) -> None:
        self.current = current
        self.retired = frozenset(retired)
        """Numbers of those that are not known any more, since no key needs them."""
        self._all = (current, *previous)
        if len({pepper.id for pepper in self._all}) < len(self._all):
            raise ValueError("two peppers have the same id")

    @classmethod
    def of(cls, secrets: Sequence[str]) -> Self:
        """Number peppers from 1, as they were used one after the other.

        Args:
            secrets: in hexadecimal or RETIRED, one at least; the last is that of new keys.

        Raises:
            ValueError: one is too short, or not in hexadecimal.
        """
        numbered = dict(enumerate(secrets, start=1))
        retired = [number for number, secret in numbered.items() if secret == RETIRED]
        *previous, current = (
            Pepper(number, bytes.fromhex(secret))
            for number, secret in numbered.items()
            if secret != RETIRED
        )
        return cls(current, previous, retired=retired)

    @property
    def former(self) -> frozenset[int]:
        """Numbers of all but that of new keys."""
        return frozenset(self.fingerprints()) - {self.current.id} | self.retired

    def fingerprints(self) -> dict[int, bytes]:
        """What tells each of them from others, by its number."""
        return {pepper.id: pepper.fingerprint() for pepper in self._all}

    def digests(self, key_sha256: bytes) -> list[bytes]:
        """All digests under which a key may be stored.

        Raises:
            InvalidFieldError: this is no SHA-256.
        """
        return [pepper.digest(key_sha256) for pepper in self._all]
