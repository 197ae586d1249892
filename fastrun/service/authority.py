"""The CA of a deployment: who is who, in certificates. No files, and the clock is passed in."""

import os
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fastrun.service.identity import Identity, Role, of_uris

CA_DAYS = 3650
DAYS = 365
# Clocks of other machines may be behind ours.
BACKDATED = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Issued:
    """A new certificate and its key, in PEM."""

    cert: bytes
    key: bytes


class Authority:
    """The CA of one deployment.

    Args:
        key: its own.
        cert: its own.
        trusted: in PEM, all CAs that the deployment trusts, this one first.
    """

    def __init__(
        self, key: ec.EllipticCurvePrivateKey, cert: x509.Certificate, trusted: bytes
    ) -> None:
        self._key = key
        self.cert = cert
        self.trusted = trusted

    @classmethod
    def new(cls, now: datetime) -> "Authority":
        """Make one that lives for ten years."""
        key = ec.generate_private_key(ec.SECP256R1())
        # People can tell it from another deployment's; what counts are its key and identifier.
        name = _name(f"fastrun CA {os.urandom(4).hex()}")
        builder = (
            _builder(key.public_key(), name, name, now - BACKDATED, now + timedelta(days=CA_DAYS))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(is_ca=True), critical=True)
        )
        cert = builder.sign(key, hashes.SHA256())
        return cls(key, cert, _pem(cert))

    @classmethod
    def of_pem(cls, key: bytes, trusted: bytes) -> "Authority":
        """Read one; of several certificates the first is its own.

        Raises:
            ValueError: these are not a CA's key and certificate.
        """
        try:
            private = serialization.load_pem_private_key(key, password=None)
        except TypeError as error:
            raise ValueError("its key has a password") from error
        cert = x509.load_pem_x509_certificates(trusted)[0]
        if not isinstance(private, ec.EllipticCurvePrivateKey) or (
            private.public_key() != cert.public_key()
        ):
            raise ValueError("the key is not that of the certificate")
        return cls(private, cert, trusted)

    @property
    def key_pem(self) -> bytes:
        """Its key, which makes anyone anybody."""
        return _key_pem(self._key)

    @property
    def fingerprint(self) -> str:
        """By which a machine that joins knows the deployment: see `fingerprint`."""
        return fingerprint(self.cert)

    def issue(self, identity: Identity, now: datetime, days: float = DAYS) -> Issued:
        """Make a certificate and its key; it ends with the CA at the latest."""
        key = ec.generate_private_key(ec.SECP256R1())
        return Issued(self.certify(identity, key.public_key(), now, days), _key_pem(key))

    def certify(
        self,
        identity: Identity,
        key: ec.EllipticCurvePublicKey,
        now: datetime,
        days: float = DAYS,
    ) -> bytes:
        """Make a certificate, in PEM, for a key that stays where it is; it ends with the CA."""
        until = min(now + timedelta(days=days), self.cert.not_valid_after_utc)
        names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(identity.uri)]
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if identity.role is not Role.OPERATOR:  # the only one that nobody calls
            names.append(x509.DNSName(identity.role.dns_name))
            usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
        issuer = self.cert.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        builder = (
            _builder(key, _name(str(identity)), self.cert.subject, now - BACKDATED, until)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(is_ca=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer),
                critical=False,
            )
        )
        return _pem(builder.sign(self._key, hashes.SHA256()))

    def has_issued(self, cert: x509.Certificate) -> bool:
        """Whether a certificate is of this CA."""
        try:
            cert.verify_directly_issued_by(self.cert)
        except (ValueError, TypeError, InvalidSignature):
            return False
        return True


def identity_of(cert: x509.Certificate) -> Identity | None:
    """Read whom a certificate is of; None: of nobody of ours."""
    try:
        names = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return None
    return of_uris(names.get_values_for_type(x509.UniformResourceIdentifier))


def fingerprint(cert: x509.Certificate) -> str:
    """SHA-256 of a certificate, as 64 hexadecimal digits."""
    return cert.fingerprint(hashes.SHA256()).hex()


def _builder(
    key: ec.EllipticCurvePublicKey,
    subject: x509.Name,
    issuer: x509.Name,
    since: datetime,
    until: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(since)
        .not_valid_after(until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, is_ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_ca,
        crl_sign=is_ca,
        encipher_only=False,
        decipher_only=False,
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _pem(cert: x509.Certificate) -> bytes:
    return cert.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
