"""What lets a machine join as a worker: a secret, and the fingerprint of the deployment's CA.

Pure. The secret is good once. By the fingerprint the machine knows that it speaks to the deployment
that the token is of, before it says the secret.
"""

import re
from dataclasses import dataclass, field
from hashlib import sha256
from random import Random
from typing import Self

from fastrun.service.api_key import checksum, random_text

_START = "frw_"
_SECRET_LENGTH = 32
_SECRET = re.compile(rf"[0-9A-Za-z]{{{_SECRET_LENGTH}}}")
_FORM = re.compile(
    rf"{_START}(?P<secret>{_SECRET.pattern})(?P<fingerprint>[0-9a-f]{{64}})"
    r"(?P<checksum>[0-9A-Za-z]{6})"
)


@dataclass(frozen=True, slots=True)
class JoinToken:
    """One token; its text is ``frw_`` and 102 letters and digits.

    Args:
        secret: 190 random bits, as 32 letters and digits.
        ca_sha256: SHA-256 of the CA's certificate in DER, as 64 hexadecimal digits.
    """

    secret: str = field(repr=False)
    ca_sha256: str

    @property
    def text(self) -> str:
        """What people copy from one machine to another."""
        body = f"{_START}{self.secret}{self.ca_sha256}"
        return body + checksum(body)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what somebody has pasted.

        Raises:
            ValueError: it is no token, or not a whole one; the message does not repeat it.
        """
        found = _FORM.fullmatch(text.strip())
        if found is None:
            raise ValueError("this is no whole token: copy it anew, frw_ and 102 more characters")
        token = cls(found["secret"], found["fingerprint"])
        if token.text != text.strip():
            raise ValueError("there is a typo in this token: copy it anew")
        return token


def new_secret(random: Random) -> str:
    """The secret of a new token.

    Args:
        random: a source fit for secrets, such as `secrets.SystemRandom()`.
    """
    return random_text(random, _SECRET_LENGTH)


def secret_sha256(secret: str) -> bytes:
    """The 32 bytes by which the auth service knows a token."""
    return sha256(secret.encode()).digest()
