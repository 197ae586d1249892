"""Whether a certificate is good for whom it is meant for. The clock is passed in."""

from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from fastrun.cli.doctor.finding import Finding, ok, warning, wrong
from fastrun.service.authority import identity_of
from fastrun.service.identity import Role
from fastrun.service.tls import Pem

# Whoever renews certificates by itself does it long before.
SOON = 0.1


def of_files(
    what: str, role: Role, files: tuple[Path, Path, Path], *, cure: str, now: datetime
) -> Finding:
    """Look at the files of a certificate, its key and the CA; see check()."""
    try:
        cert, key, ca = (path.read_bytes() for path in files)
    except OSError as error:
        problem = f"cannot read {error.filename} ({error.strerror})"
        return wrong("certificate", f"{problem}, for {what}: {cure}")
    return check(what, role, Pem(cert, key, ca), cure=cure, now=now)


def check(what: str, role: Role, pem: Pem, *, cure: str, now: datetime) -> Finding:
    """Look at a certificate.

    Args:
        what: it is for.
        role: which it has to say.
        pem: it, its key and the CAs that are trusted.
        cure: how another one is made.
        now: in UTC.
    """
    try:
        cert = x509.load_pem_x509_certificate(pem.cert)
        key = load_pem_private_key(pem.key, password=None)
        trusted = x509.load_pem_x509_certificates(pem.ca)
    except (ValueError, TypeError):
        return wrong("certificate", f"the certificate, key or CA of {what} is damaged: {cure}")
    key_fits = key.public_key() == cert.public_key()
    problem = _age(cert, now) or _belonging(cert, trusted, role, now, key_fits=key_fits)
    if problem is not None:
        return wrong("certificate", f"the certificate of {what} {problem}: {cure}")
    whole, left = (
        cert.not_valid_after_utc - cert.not_valid_before_utc,
        cert.not_valid_after_utc - now,
    )
    until = f"{cert.not_valid_after_utc:%Y-%m-%d}"
    if left < whole * SOON:
        return warning("certificate", f"the certificate of {what} ends on {until}: {cure}")
    return ok("certificate", f"that of {what} is good until {until}")


def _age(cert: x509.Certificate, now: datetime) -> str | None:
    if cert.not_valid_after_utc <= now:
        return f"has expired on {cert.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
    if cert.not_valid_before_utc > now:
        return f"begins on {cert.not_valid_before_utc:%Y-%m-%d %H:%M} UTC, or the clock is wrong"
    return None


def _belonging(
    cert: x509.Certificate,
    trusted: Iterable[x509.Certificate],
    role: Role,
    now: datetime,
    *,
    key_fits: bool,
) -> str | None:
    if not key_fits:
        return "is not that of its key"
    who = identity_of(cert)
    if who is None or who.role is not role:
        return f"is that of {who or 'nobody'}, and not of {role}/NAME"
    issuers = [each for each in trusted if _has_issued(each, cert)]
    if not issuers:
        return "is not of the CA that is trusted beside it"
    if all(each.not_valid_after_utc <= now for each in issuers):
        return "is of a CA that has expired"
    return None


def _has_issued(ca: x509.Certificate, cert: x509.Certificate) -> bool:
    try:
        cert.verify_directly_issued_by(ca)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True
