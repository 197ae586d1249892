"""The certificates of a deployment: one CA, and one certificate for each identity.

A folder holds them. Its ``ca/`` is for whoever makes certificates and belongs on no other machine;
each other folder holds all that one identity needs: ``cert.pem``, ``key.pem`` and ``ca.pem``.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from fastrun.local.errors import LocalError
from fastrun.service import private_file
from fastrun.service.authority import DAYS, Authority, identity_of
from fastrun.service.identity import Identity, Role

DEFAULT_NAME = "default"
EVERYONE = tuple(Identity(role, DEFAULT_NAME) for role in Role)
# One with less than this part of its time left is made anew.
RENEWED_AT = 1 / 3


@dataclass(frozen=True, slots=True)
class Certificate:
    """What a folder holds for one identity."""

    identity: Identity
    folder: Path
    expires_at: datetime
    is_new: bool
    """Made just now."""


def provide(
    folder: Path,
    identities: Iterable[Identity],
    now: datetime,
    *,
    days: float = DAYS,
    renew: bool = False,
) -> list[Certificate]:
    """Make sure that each identity has a good certificate, and the folder a CA.

    Args:
        folder: of the deployment; made if it is not there.
        identities: whose certificates.
        now: in UTC.
        days: how long new ones live.
        renew: make all of these anew, also those that have time left.

    Raises:
        LocalError: the folder cannot be used, or its CA has ended.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        authority = _authority(folder, now)
        return [
            _provide(folder / folder_name(identity), identity, authority, now, days, renew=renew)
            for identity in identities
        ]
    except OSError as error:
        raise LocalError(
            f"cannot keep certificates in {folder}: {error.filename}: {error.strerror}"
        ) from error


def identities_in(folder: Path) -> list[Identity]:
    """Whose certificates a deployment's folder holds."""
    found = []
    for path in sorted(folder.glob("*/cert.pem")):
        try:
            cert = x509.load_pem_x509_certificate(path.read_bytes())
            identity = identity_of(cert)
        except ValueError:
            continue
        if identity is not None and folder_name(identity) == path.parent.name:
            found.append(identity)
    return found


def folder_name(identity: Identity) -> str:
    """Where an identity's certificate lies, such as ``edge`` or ``worker-gpu-1``."""
    name = "" if identity.name == DEFAULT_NAME else f"-{identity.name}"
    return f"{identity.role}{name}"


def open_authority(folder: Path, now: datetime) -> Authority:
    """Read the CA of a deployment.

    Raises:
        LocalError: it cannot be used.
    """
    key, trusted = folder / "ca" / "key.pem", folder / "ca" / "ca.pem"
    try:
        authority = Authority.of_pem(key.read_bytes(), trusted.read_bytes())
    except OSError as error:
        raise LocalError(f"cannot read {error.filename}: {error.strerror}") from error
    except ValueError as error:
        raise LocalError(
            f"{key.parent} holds no CA that can be used ({error}): "
            "restore it, or remove it to have a new one made"
        ) from error
    if authority.cert.not_valid_after_utc <= now:
        raise LocalError(f"the CA in {key.parent} has ended: remove it to have a new one made")
    return authority


def _authority(folder: Path, now: datetime) -> Authority:
    if (folder / "ca" / "ca.pem").exists():  # written last
        return open_authority(folder, now)
    authority = Authority.new(now)
    _write(folder / "ca", {"key.pem": authority.key_pem, "ca.pem": authority.trusted})
    return authority


def _provide(
    folder: Path,
    identity: Identity,
    authority: Authority,
    now: datetime,
    days: float,
    *,
    renew: bool,
) -> Certificate:
    if not renew:
        cert = _good(folder, identity, authority, now)
        if cert is not None:
            return Certificate(identity, folder, cert.not_valid_after_utc, is_new=False)
    issued = authority.issue(identity, now, days)
    _write(folder, {"key.pem": issued.key, "cert.pem": issued.cert, "ca.pem": authority.trusted})
    made = x509.load_pem_x509_certificate(issued.cert)
    return Certificate(identity, folder, made.not_valid_after_utc, is_new=True)


def _good(
    folder: Path, identity: Identity, authority: Authority, now: datetime
) -> x509.Certificate | None:
    """Return the certificate that is there, unless it has to be made anew."""
    try:
        cert = x509.load_pem_x509_certificate((folder / "cert.pem").read_bytes())
        key = serialization.load_pem_private_key((folder / "key.pem").read_bytes(), password=None)
        trusted = (folder / "ca.pem").read_bytes()
    except (FileNotFoundError, ValueError, TypeError):  # the last: a key with a password
        return None
    whole = cert.not_valid_after_utc - cert.not_valid_before_utc
    fits = (
        key.public_key() == cert.public_key()
        and identity == identity_of(cert)
        and authority.has_issued(cert)
        and trusted == authority.trusted
        and cert.not_valid_after_utc - now > whole * RENEWED_AT
    )
    return cert if fits else None


def _write(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        private_file.write(folder / name, content)
