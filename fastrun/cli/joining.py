"""How this machine joins a deployment: it proves the head by the token, then itself by the same.

The token has the fingerprint of the deployment's CA. So the CA is asked for on a connection that
proves nothing yet, compared, and trusted on a second connection, which alone carries the secret.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

import grpc
import grpc.aio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fastrun.cli.connection import TIMEOUT_S
from fastrun.cli.errors import CommandError
from fastrun.service import rpc
from fastrun.service.authority import fingerprint, identity_of
from fastrun.service.config import host_and_port
from fastrun.service.errors import TRAILER, ServiceError
from fastrun.service.identity import Role
from fastrun.service.join_token import JoinToken
from fastrun.service.tls import ClientTls
from fastrun.v1 import auth_pb2, auth_pb2_grpc

T = TypeVar("T")

RENEW_S = 3.0


@dataclass(frozen=True, slots=True)
class Trust:
    """A client that shows no certificate, and whom it believes; a ClientTls."""

    ca: bytes

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Credentials for one channel."""
        return grpc.ssl_channel_credentials(self.ca)


def new_key() -> bytes:
    """A key of this machine's own, in PEM."""
    return ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def join(head: str, token: JoinToken, name: str, key_pem: bytes) -> auth_pb2.EnrolResponse:
    """Exchange a token for a certificate.

    Args:
        head: host:port where machines join.
        token: of the deployment; used up afterwards.
        name: the worker's, which the certificate will say.
        key_pem: this machine's key; only its public half leaves it.

    Raises:
        CommandError: it cannot be, with what to do.
    """
    proof = _proof(head)
    _check_proof(head, x509.load_pem_x509_certificate(proof), datetime.now(UTC))
    answer = _ask(head, proof, lambda stub: stub.GetAuthority(auth_pb2.GetAuthorityRequest()))
    ca = answer.ca_pem.encode()
    _check_authority(head, ca, token)
    request = auth_pb2.EnrolRequest(
        secret=token.secret, worker_id=name, csr_pem=_request(name, key_pem)
    )
    return _ask(head, ca, lambda stub: stub.Enrol(request))


def renew(auth: str, tls: ClientTls) -> auth_pb2.RenewResponse | None:
    """Ask what may have changed since the join; None: nobody answers, and what was told stands.

    Args:
        auth: host:port of the auth service.
        tls: this worker's certificate.
    """

    async def run() -> auth_pb2.RenewResponse:
        async with rpc.channel(auth, Role.AUTH, tls) as channel:
            stub: auth_pb2_grpc.AuthServiceAsyncStub = auth_pb2_grpc.AuthServiceStub(channel)
            return await stub.Renew(auth_pb2.RenewRequest(), timeout=RENEW_S)

    try:
        return asyncio.run(run())
    except grpc.aio.AioRpcError:
        return None  # the worker asks again while it runs, and says so in its log


def _proof(head: str) -> bytes:
    """The certificate that a head shows, in PEM, whoever it may be of."""
    try:
        return ssl.get_server_certificate(host_and_port(head), timeout=TIMEOUT_S).encode()
    except ssl.SSLError as error:
        raise CommandError(f"what answers at {head} speaks no TLS: {_WHICH_PORT}") from error
    except OSError as error:
        raise CommandError(
            f"nothing answers at {head}: {_WHICH_PORT}, and does its firewall let us through?"
        ) from error


def _check_proof(head: str, cert: x509.Certificate, now: datetime) -> None:
    """See whether it may be a head; says early what TLS would say in riddles."""
    who = identity_of(cert)
    if who is None or who.role is not Role.AUTH:
        raise CommandError(f"what answers at {head} lets no machines join: {_WHICH_PORT}")
    if now < cert.not_valid_before_utc:
        raise CommandError(
            f"by this machine's clock it is {now:%Y-%m-%d %H:%M} UTC, which is before the "
            f"certificate of {head} was made: set this clock"
        )
    if now > cert.not_valid_after_utc:
        raise CommandError(
            f"the certificate of {head} ended on {cert.not_valid_after_utc:%Y-%m-%d %H:%M} UTC: "
            f"renew it there with fastrun certs; or set this machine's clock, which says "
            f"{now:%Y-%m-%d %H:%M}"
        )


def _check_authority(head: str, ca: bytes, token: JoinToken) -> None:
    try:
        found = fingerprint(x509.load_pem_x509_certificate(ca))
    except ValueError as error:
        raise CommandError(f"{head} is no head of fastrun: {_WHICH_PORT}") from error
    if found != token.ca_sha256:
        raise CommandError(
            f"{head} is of another deployment than this token: check the address, or make a "
            "token there with fastrun worker token"
        )


def _request(name: str, key_pem: bytes) -> str:
    key = serialization.load_pem_private_key(key_pem, password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"{Role.WORKER}/{name}")])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject)
    signed = request.sign(key, hashes.SHA256())
    return signed.public_bytes(serialization.Encoding.PEM).decode()


def _ask(
    head: str,
    ca: bytes,
    call: Callable[["auth_pb2_grpc.EnrolmentServiceAsyncStub"], Awaitable[T]],
) -> T:
    async def run() -> T:
        async with rpc.channel(head, Role.AUTH, Trust(ca)) as channel:
            stub: auth_pb2_grpc.EnrolmentServiceAsyncStub = auth_pb2_grpc.EnrolmentServiceStub(
                channel
            )
            async with asyncio.timeout(TIMEOUT_S):
                return await call(stub)

    try:
        return asyncio.run(run())
    except grpc.aio.AioRpcError as error:
        if any(key == TRAILER for key, _ in error.trailing_metadata() or ()):
            raise CommandError(str(ServiceError.of_rpc(error))) from error
        if "CERTIFICATE_VERIFY_FAILED" in (error.details() or ""):
            raise CommandError(
                f"{head} names the CA of this token, but has no certificate of it: "
                "is something between this machine and the head?"
            ) from error
        raise CommandError(
            f"what answers at {head} lets no machines join: {_WHICH_PORT}"
        ) from error
    except TimeoutError as error:
        raise CommandError(f"{head} did not answer within {TIMEOUT_S:.0f} s: try again") from error


_WHICH_PORT = "is it the head's port for that, 7004 unless it was changed"
