"""Who may join as a worker, and who may stay one; pure.

A token is good once, for an hour. It may be for one name only, and then that name's certificate may
be replaced; otherwise a name with a valid certificate is not given to another machine.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from auth_service.errors import AlreadyExistsError, InvalidFieldError, NotFoundError, StateError
from fastrun.service.identity import Identity, Role

TOKEN_S = 3600.0
MOST_AGAIN_S = 24 * 3600
# A certificate is renewed when this part of its time is left, or less.
RENEWED_AT = 1 / 2


@dataclass(frozen=True, slots=True)
class Token:
    """What is known of a token.

    Args:
        worker_id: the only worker that it is for; empty: any name that is free.
        expired: its hour is over.
        used_by: which worker has joined by it; empty: none.
        used_key_sha256: of that worker's public key.
    """

    worker_id: str
    expired: bool
    used_by: str = ""
    used_key_sha256: bytes = b""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has the certificate of a name.

    Args:
        key_sha256: of its public key.
        valid: the certificate has not ended.
    """

    key_sha256: bytes
    valid: bool


@dataclass(frozen=True, slots=True)
class Applicant:
    """A machine that asks for the certificate of a name, for a key of its own."""

    worker: Identity
    key: ec.EllipticCurvePublicKey

    @property
    def key_sha256(self) -> bytes:
        """By which it is known later."""
        return public_key_sha256(self.key)


def applicant(worker_id: str, csr_pem: str) -> Applicant:
    """Read what a machine asks for.

    Raises:
        InvalidFieldError: this cannot be a worker's name, or is no request for a certificate.
    """
    worker = worker_identity(worker_id)
    try:
        request = x509.load_pem_x509_csr(csr_pem.encode())
        key = request.public_key()
        signed = request.is_signature_valid
    except (ValueError, TypeError, UnsupportedAlgorithm, InvalidSignature) as error:
        raise InvalidFieldError("csr_pem is no request for a certificate") from error
    if not signed or not isinstance(key, ec.EllipticCurvePublicKey):
        raise InvalidFieldError("csr_pem must be signed by the P-256 key that it is for")
    if not isinstance(key.curve, ec.SECP256R1):
        raise InvalidFieldError("csr_pem must be for a key on curve P-256")
    return Applicant(worker, key)


def worker_identity(worker_id: str) -> Identity:
    """The identity of a worker's name.

    Raises:
        InvalidFieldError: it cannot be one.
    """
    try:
        return Identity(Role.WORKER, worker_id)
    except ValueError as error:
        raise InvalidFieldError(str(error)) from error


def public_key_sha256(key: ec.EllipticCurvePublicKey) -> bytes:
    """By which a key is known."""
    return sha256(
        key.public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    ).digest()


def check_join(token: Token | None, holder: Holder | None, worker: str, key_sha256: bytes) -> None:
    """Let a machine join; once more, if its first answer was lost.

    Args:
        token: what is known of the token that it gave; None: nothing.
        holder: who has the certificate of the name that it asks for; None: nobody ever had one.
        worker: that name.
        key_sha256: of its public key.

    Raises:
        NotFoundError: nobody made this token.
        StateError: it has expired, was used by another machine, is for another worker, or was used
            by this one, which has been replaced since.
        AlreadyExistsError: the name is taken.
    """
    if token is None:
        raise NotFoundError(
            "this token is unknown here: make one with fastrun worker token on the head"
        )
    again = (token.used_by, token.used_key_sha256) == (worker, key_sha256)
    if token.used_by and not again:
        raise StateError(
            f"worker {token.used_by} has joined by this token, and each is good once: "
            "make another one with fastrun worker token"
        )
    if token.expired:
        raise StateError("this token has expired: make another one with fastrun worker token")
    if token.worker_id and token.worker_id != worker:
        raise StateError(
            f"this token is for worker {token.worker_id}: join with --name {token.worker_id}, "
            "or make a token without --worker"
        )
    taken = holder is not None and holder.valid and holder.key_sha256 != key_sha256
    if taken and again:
        raise StateError(
            f"another machine has joined as worker {worker} since this token was used: make "
            f"another one with fastrun worker token --worker {worker}"
        )
    if taken and not token.worker_id:
        raise AlreadyExistsError(
            f"another machine is worker {worker}: choose another name with --name, or make a token "
            f"that may replace it with fastrun worker token --worker {worker}"
        )


def check_renewal(holder: Holder | None, worker: str, key_sha256: bytes) -> None:
    """Let a worker go on being one.

    Args:
        holder: who has the certificate of its name; None: nobody has joined by it.
        worker: that name.
        key_sha256: of the public key in the certificate that it shows.

    Raises:
        NotFoundError: it has not joined, or not as the last of its name.
    """
    if holder is None:
        raise NotFoundError(
            f"worker {worker} did not join by a token: whoever made its certificate renews it"
        )
    if holder.key_sha256 != key_sha256:
        raise NotFoundError(
            f"another machine has joined as worker {worker} since: join again under another name"
        )


def has_time_left(expires_at: datetime, now: datetime, lifetime: timedelta) -> bool:
    """Whether a certificate is not to be renewed yet.

    Args:
        expires_at: when it ends.
        now: in UTC.
        lifetime: of new certificates.
    """
    return expires_at - now > lifetime * RENEWED_AT


def again_in_s(expires_at: datetime, now: datetime) -> int:
    """When a worker asks again: well before its certificate ends, and once a day at least."""
    return max(1, min(MOST_AGAIN_S, int((expires_at - now).total_seconds() / 4)))
