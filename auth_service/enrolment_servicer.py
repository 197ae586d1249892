"""How machines join as workers and stay workers, over gRPC."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc.aio
import structlog
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from google.protobuf.message import Message

from auth_service.enrolment import Applicant, again_in_s, applicant, has_time_left
from auth_service.enrolment_store import Certified, EnrolmentStore
from auth_service.errors import NotFoundError, StateError
from auth_service.refusals import told
from fastrun.service import identity
from fastrun.service.authority import Authority, identity_of
from fastrun.service.errors import ServiceError
from fastrun.service.lifecycle import StartError
from fastrun.v1 import auth_pb2, auth_pb2_grpc
from fastrun.v1.error_pb2 import ErrorReason

log = structlog.get_logger()

Context = grpc.aio.ServicerContext

# Strangers' tokens are looked up one by one: they take one connection of the pool, no more.
STRANGERS_AT_ONCE = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What machines that join are told and given.

    Args:
        ca_key: PEM file of the CA's key.
        ca: PEM file of all CAs that the deployment trusts, that one's first.
        lifetime: of certificates.
        schedulers: host:port of each scheduler as workers reach it; see FleetAddresses.
        auth: that of the auth service.
    """

    ca_key: Path
    ca: Path
    lifetime: timedelta
    schedulers: tuple[str, ...]
    auth: str

    async def authority(self) -> Authority:
        """The CA, as its files are now: it may be another one since the last machine has joined.

        Raises:
            StateError: they cannot be used.
        """
        return await asyncio.to_thread(self._read)

    async def certificate(self) -> x509.Certificate:
        """That of the CA, without a look at its key; as its file is now.

        Raises:
            StateError: it cannot be used.
        """
        return await asyncio.to_thread(self._read_certificate)

    async def check(self) -> None:
        """Make sure at the start that machines can join.

        Raises:
            StartError: they cannot.
        """
        try:
            await self.authority()
        except StateError as error:
            raise StartError(str(error)) from error

    def addresses(self) -> auth_pb2.FleetAddresses:
        """Where workers find the services."""
        return auth_pb2.FleetAddresses(schedulers=self.schedulers, auth=self.auth)

    def _read(self) -> Authority:
        try:
            return Authority.of_pem(self.ca_key.read_bytes(), self.ca.read_bytes())
        except OSError as error:
            raise StateError(f"cannot read {error.filename}: {error.strerror}") from error
        except (ValueError, IndexError) as error:
            raise StateError(
                f"{self.ca_key} and the first of {self.ca} are no CA: {error}"
            ) from error

    def _read_certificate(self) -> x509.Certificate:
        try:
            return x509.load_pem_x509_certificates(self.ca.read_bytes())[0]
        except OSError as error:
            raise StateError(f"cannot read {error.filename}: {error.strerror}") from error
        except (ValueError, IndexError) as error:
            raise StateError(f"{self.ca} holds no certificate: {error}") from error


class Enrolment:
    """Lets machines join and workers stay, by the CA's files and Postgres."""

    def __init__(self, store: EnrolmentStore, terms: Terms) -> None:
        self.terms = terms
        self.port = 0
        """Where machines join; known once it listens."""
        self._store = store

    async def create_token(self, token_sha256: bytes, worker_id: str) -> tuple[float, str]:
        """Register a token.

        Returns:
            When it expires, in seconds since 1970, and the CA's fingerprint.
        """
        authority = await self.terms.authority()
        expires_at = await self._store.create_token(token_sha256, worker_id)
        return expires_at, authority.fingerprint

    async def join(self, secret: str, asking: Applicant) -> auth_pb2.EnrolResponse:
        """Give a machine with a token a certificate."""
        authority = await self.terms.authority()
        certified = await self._store.join(secret, asking, self._certifier(authority, asking))
        return auth_pb2.EnrolResponse(
            cert_pem=certified.cert,
            ca_pem=authority.trusted.decode(),
            addresses=self.terms.addresses(),
        )

    async def renew(self, cert: x509.Certificate, asking: Applicant) -> auth_pb2.RenewResponse:
        """Give a worker a new certificate, unless the one that it shows has time left."""
        authority = await self.terms.authority()
        now, expires_at = datetime.now(UTC), cert.not_valid_after_utc
        kept = authority.has_issued(cert) and has_time_left(expires_at, now, self.terms.lifetime)
        certify = None if kept else self._certifier(authority, asking)
        certified = await self._store.renew(asking, certify)
        return auth_pb2.RenewResponse(
            cert_pem=certified.cert if certified else "",
            ca_pem=authority.trusted.decode(),
            addresses=self.terms.addresses(),
            again_in_s=again_in_s(certified.expires_at if certified else expires_at, now),
        )

    def _certifier(self, authority: Authority, asking: Applicant) -> Callable[[], Certified]:
        days = self.terms.lifetime / timedelta(days=1)

        def certify() -> Certified:
            pem = authority.certify(asking.worker, asking.key, datetime.now(UTC), days)
            cert = x509.load_pem_x509_certificate(pem)
            return Certified(pem.decode(), cert.not_valid_after_utc)

        return certify


class EnrolmentServicer(auth_pb2_grpc.EnrolmentServiceServicer):
    """Answers machines that have no certificate yet."""

    def __init__(self, enrolment: Enrolment) -> None:
        self._enrolment = enrolment
        self._turn = asyncio.Semaphore(STRANGERS_AT_ONCE)

    async def GetAuthority(  # noqa: N802 - gRPC's name
        self, request: auth_pb2.GetAuthorityRequest, context: "Context[Message, Message]"
    ) -> auth_pb2.GetAuthorityResponse:
        """See auth.proto."""
        del request, context
        cert = await told(self._enrolment.terms.certificate())
        pem = cert.public_bytes(Encoding.PEM)
        return auth_pb2.GetAuthorityResponse(ca_pem=pem.decode())

    async def Enrol(  # noqa: N802 - gRPC's name
        self, request: auth_pb2.EnrolRequest, context: "Context[Message, Message]"
    ) -> auth_pb2.EnrolResponse:
        """See auth.proto."""
        peer = context.peer()
        try:
            response = await told(self._join(request))
        except ServiceError as error:
            log.warning("join_refused", peer=peer, reason=error.detail.message)
            raise
        log.info("worker_joined", worker_id=request.worker_id, peer=peer)
        return response

    async def _join(self, request: auth_pb2.EnrolRequest) -> auth_pb2.EnrolResponse:
        asking = applicant(request.worker_id, request.csr_pem)
        async with self._turn:
            return await self._enrolment.join(request.secret, asking)


class RenewalServicer(auth_pb2_grpc.AuthServiceServicer):
    """Answers workers that have joined.

    Args:
        enrolment: None: no machine can join here.
    """

    def __init__(self, enrolment: Enrolment | None) -> None:
        self._enrolment = enrolment

    async def Renew(  # noqa: N802 - gRPC's name
        self, request: auth_pb2.RenewRequest, context: "Context[Message, Message]"
    ) -> auth_pb2.RenewResponse:
        """See auth.proto."""
        del request
        enrolment = required(self._enrolment)
        response = await told(self._renew(enrolment, _shown(context)))
        if response.cert_pem:
            log.info("worker_renewed", worker=identity.actor())
        return response

    @staticmethod
    async def _renew(enrolment: Enrolment, cert: x509.Certificate) -> auth_pb2.RenewResponse:
        worker, key = identity_of(cert), cert.public_key()
        if worker is None or not isinstance(key, ec.EllipticCurvePublicKey):
            raise NotFoundError("this certificate is none of a worker that has joined")
        return await enrolment.renew(cert, Applicant(worker, key))


def required(enrolment: Enrolment | None) -> Enrolment:
    """What is needed, where machines may join.

    Raises:
        ServiceError: CONFLICT, they may not.
    """
    if enrolment is None:
        raise ServiceError(
            ErrorReason.ERROR_REASON_CONFLICT,
            "no machine can join here: set FASTRUN_AUTH_ENROL_LISTEN and FASTRUN_AUTH_ENROL_CA_KEY",
        )
    return enrolment


def _shown(context: "Context[Message, Message]") -> x509.Certificate:
    """The certificate of who calls; only a worker's comes as far as here.

    Raises:
        ServiceError: CONFLICT, there is none: this deployment does without.
    """
    for pem in context.auth_context().get("x509_pem_cert", ()):
        return x509.load_pem_x509_certificate(pem)
    raise ServiceError(
        ErrorReason.ERROR_REASON_CONFLICT, "there is nothing to renew without certificates"
    )
