"""Servers and channels with certificates."""

import asyncio
import ssl
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta

import grpc
import grpc.aio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from fastrun.local.certificates import provide
from fastrun.service import identity, rpc
from fastrun.service.authority import Authority
from fastrun.service.errors import ServiceError
from fastrun.service.identity import Identity, Role
from fastrun.service.rpc import FreshChannel, RpcServer
from fastrun.service.tls import Pem, Tls
from fastrun.v1 import auth_pb2, auth_pb2_grpc, worker_pb2, worker_pb2_grpc
from fastrun.v1.error_pb2 import ErrorReason
from fastrun.v1.worker_pb2 import GetInfoRequest, GetInfoResponse

NOW = datetime.now(UTC)
WORKER, EDGE, ALICE = (
    Identity(Role.WORKER, "w1"),
    Identity(Role.EDGE, "e1"),
    Identity(Role.OPERATOR, "alice"),
)


class Servicer(worker_pb2_grpc.WorkerServiceServicer):
    """Answers with who it thinks calls, and the certificate that was shown."""

    async def GetInfo(self, request, context):
        [shown] = context.auth_context().get("x509_pem_cert", [b""])
        return GetInfoResponse(worker_id=identity.actor(), version=shown.decode())

    async def Attach(self, request_iterator, context):
        """Answer each frame, and so show whether the connection lives."""
        while (frame := await context.read()) is not grpc.aio.EOF:
            await context.write(worker_pb2.WorkerFrame(items=[{"stream_id": len(frame.items)}]))

    async def Generate(self, request, context):
        await context.abort(grpc.StatusCode.UNIMPLEMENTED)


class Site:
    """One deployment: its folder, and the server that runs with it."""

    def __init__(self, folder, stack):
        self.folder = folder
        self.stack = stack
        self.provide()
        self.port = None

    def provide(self, *identities, **options):
        provide(self.folder, identities or (WORKER, EDGE, ALICE), NOW, **options)

    def tls(self, who):
        return Tls.of_folder(self.path(who))

    def path(self, who):
        return self.folder / f"{who.role}-{who.name}"

    def authority(self):
        folder = self.folder / "ca"
        return Authority.of_pem((folder / "key.pem").read_bytes(), (folder / "ca.pem").read_bytes())

    def pem(self, who, now=NOW, days=1.0):
        issued = self.authority().issue(who, now, days)
        return Pem(issued.cert, issued.key, self.authority().trusted)

    async def serve(self, tls):
        server = RpcServer(tls)
        server.add(
            worker_pb2.DESCRIPTOR.services_by_name["WorkerService"],
            worker_pb2_grpc.add_WorkerServiceServicer_to_server,
            Servicer(),
        )
        self.port = await server.start("127.0.0.1:0")
        self.stack.push_async_callback(server.stop, 0)

    def stub(self, tls, role=Role.WORKER):
        channel = rpc.channel(f"127.0.0.1:{self.port}", role, tls)
        self.stack.push_async_callback(channel.close)
        return worker_pb2_grpc.WorkerServiceStub(channel)

    async def shown_by_server(self):
        """Return the certificate that the server shows to a new connection now, in PEM."""
        context = ssl.create_default_context(cafile=self.path(EDGE) / "ca.pem")
        context.load_cert_chain(self.path(EDGE) / "cert.pem", self.path(EDGE) / "key.pem")
        context.set_alpn_protocols(["h2"])
        _, writer = await asyncio.open_connection(
            "127.0.0.1", self.port, ssl=context, server_hostname=Role.WORKER.dns_name
        )
        found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.transport.abort()
        return x509.load_der_x509_certificate(found).public_bytes(Encoding.PEM)


@pytest.fixture
async def sites(tmp_path):
    """Makes deployments; each has its own CA."""
    async with AsyncExitStack() as stack:
        yield lambda name: Site(tmp_path / name, stack)


@pytest.fixture
async def site(sites):
    site = sites("site")
    await site.serve(site.tls(WORKER))
    return site


async def info(stub):
    return await stub.GetInfo(GetInfoRequest(), timeout=10)


async def refused(stub):
    """Return the status of a call that must fail, and its detail."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await info(stub)
    return caught.value.code(), caught.value.details()


async def test_a_handler_knows_who_calls(site):
    """Role and name of the caller are there for audit records."""
    assert (await info(site.stub(site.tls(ALICE)))).worker_id == "operator/alice"
    assert (await info(site.stub(site.tls(EDGE)))).worker_id == "edge/e1"


async def test_plaintext_knows_nobody(site):
    """A server without certificates takes every call, as anonymous."""
    await site.serve(None)
    assert (await info(site.stub(None))).worker_id == "anonymous"


async def test_a_call_that_is_for_others(site):
    """The refusal says who may, and carries a reason that programs read."""
    call = site.stub(site.tls(ALICE)).Attach()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert caught.value.code() == grpc.StatusCode.PERMISSION_DENIED
    detail = ServiceError.of_rpc(caught.value).detail
    assert detail.reason == ErrorReason.ERROR_REASON_PERMISSION_DENIED
    assert detail.message == ("operator/alice may not call WorkerService.Attach: it is for edge")


async def test_strangers(site, sites):
    """Without a certificate, with one of another CA, and in plaintext, nothing is answered."""
    other = sites("other").pem(EDGE)
    ours = site.pem(EDGE)
    for tls in (None, Pem(other.cert, other.key, ours.ca), other):
        code, _ = await refused(site.stub(tls))
        assert code == grpc.StatusCode.UNAVAILABLE

    class NoCertificate:
        def channel_credentials(self):
            return grpc.ssl_channel_credentials(ours.ca)

    code, _ = await refused(site.stub(NoCertificate()))
    assert code == grpc.StatusCode.UNAVAILABLE


class Waiting(auth_pb2_grpc.EnrolmentServiceServicer):
    """Answers nobody before it is let."""

    def __init__(self):
        self.may = asyncio.Event()

    async def Enrol(self, request, context):
        await self.may.wait()
        return auth_pb2.EnrolResponse()


async def test_how_many_strangers_are_heard_at_once():
    """Who opens calls without end on a port for strangers takes no memory without end."""
    waiting, server = Waiting(), RpcServer(strangers=True)
    service = auth_pb2.DESCRIPTOR.services_by_name["EnrolmentService"]
    server.add(service, auth_pb2_grpc.add_EnrolmentServiceServicer_to_server, waiting)
    port = await server.start("127.0.0.1:0")
    connections = rpc.MOST_STRANGERS_CALLS // rpc.MOST_STRANGERS_STREAMS + 2
    async with AsyncExitStack() as stack:
        stubs = [
            auth_pb2_grpc.EnrolmentServiceStub(
                await stack.enter_async_context(rpc.channel(f"127.0.0.1:{port}"))
            )
            for _ in range(connections)
        ]
        calls = [
            asyncio.create_task(_code_of(stub.Enrol(auth_pb2.EnrolRequest())))
            for stub in stubs
            for _ in range(rpc.MOST_STRANGERS_STREAMS)
        ]
        too_many = len(calls) - rpc.MOST_STRANGERS_CALLS
        async with asyncio.timeout(10):
            while sum(call.done() for call in calls) < too_many:
                await asyncio.wait(
                    [call for call in calls if not call.done()],
                    return_when=asyncio.FIRST_COMPLETED,
                )
        waiting.may.set()
        codes = await asyncio.gather(*calls)
    await server.stop(0)
    assert codes.count(grpc.StatusCode.RESOURCE_EXHAUSTED) == too_many
    assert codes.count(grpc.StatusCode.OK) == rpc.MOST_STRANGERS_CALLS


async def _code_of(call):
    return await call.code()


async def test_a_certificate_without_identity(site):
    """One of our CA that names nobody opens nothing."""
    authority = site.authority()
    key = ec.generate_private_key(ec.SECP256R1())
    cert = (
        x509.CertificateBuilder(subject_name=x509.Name([]))
        .issuer_name(authority.cert.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW)
        .not_valid_after(NOW + timedelta(days=1))
        .sign(authority._key, hashes.SHA256())
    )
    pem = Pem(
        cert.public_bytes(Encoding.PEM),
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        authority.trusted,
    )
    code, details = await refused(site.stub(pem))
    assert code == grpc.StatusCode.PERMISSION_DENIED
    assert details.startswith("a certificate without one fastrun:ROLE/NAME may not call")


async def test_a_server_of_another_role(site):
    """Who wants the scheduler is not served by a worker, wherever it listens."""
    code, details = await refused(site.stub(site.tls(EDGE), Role.SCHEDULER))
    assert code == grpc.StatusCode.UNAVAILABLE
    assert "Hostname Verification" in details


async def test_an_operator_is_no_server(site):
    """An operator's certificate does not let a laptop stand in for a service."""
    await site.serve(site.tls(ALICE))
    code, _ = await refused(site.stub(site.tls(EDGE)))
    assert code == grpc.StatusCode.UNAVAILABLE


async def test_expired_certificates(site):
    """A certificate that has ended is refused, on either side."""
    ended = site.pem(EDGE, now=NOW - timedelta(days=2))
    code, _ = await refused(site.stub(ended))
    assert code == grpc.StatusCode.UNAVAILABLE

    provide(site.folder, [WORKER], NOW - timedelta(days=2), days=1, renew=True)
    code, details = await refused(site.stub(site.tls(EDGE)))
    assert code == grpc.StatusCode.UNAVAILABLE
    assert "certificate has expired" in details


async def test_a_server_takes_new_certificates_while_it_runs(site):
    """New connections see the new certificate, and what is open lives on."""
    old = (site.path(WORKER) / "cert.pem").read_bytes()
    assert await site.shown_by_server() == old
    call = site.stub(site.tls(EDGE)).Attach()
    await call.write(worker_pb2.EdgeFrame(items=[{}]))
    assert (await call.read()).items[0].stream_id == 1

    site.provide(WORKER, renew=True)

    new = (site.path(WORKER) / "cert.pem").read_bytes()
    assert new != old
    assert await site.shown_by_server() == new
    await call.write(worker_pb2.EdgeFrame(items=[{}, {}]))
    assert (await call.read()).items[0].stream_id == 2
    await info(site.stub(site.tls(EDGE)))
    call.cancel()


async def test_a_client_shows_its_new_certificate(site):
    """A channel for calls now and then is opened anew when its certificate was replaced."""
    address = f"127.0.0.1:{site.port}"
    fresh = FreshChannel(address, Role.WORKER, site.tls(EDGE))

    async def shown():
        stub = worker_pb2_grpc.WorkerServiceStub(fresh.get())
        return (await info(stub)).version.encode()

    old = (site.path(EDGE) / "cert.pem").read_bytes()
    assert await shown() == old
    channel = fresh.get()
    running = worker_pb2_grpc.WorkerServiceStub(channel).Attach()
    assert fresh.get() is channel

    site.provide(EDGE, renew=True)

    assert await shown() == (site.path(EDGE) / "cert.pem").read_bytes() != old
    await running.write(worker_pb2.EdgeFrame(items=[{}]))
    assert (await running.read()).items[0].stream_id == 1
    running.cancel()
    await fresh.close()


async def test_a_second_ca_is_trusted_without_a_restart(site, sites):
    """While a CA is exchanged, certificates of both are good."""
    other = sites("other")
    newcomer = other.pem(EDGE)
    newcomer = Pem(newcomer.cert, newcomer.key, site.authority().trusted)
    code, _ = await refused(site.stub(newcomer))
    assert code == grpc.StatusCode.UNAVAILABLE

    trusted = site.path(WORKER) / "ca.pem"
    trusted.write_bytes(trusted.read_bytes() + other.authority().trusted)

    assert (await info(site.stub(newcomer))).worker_id == "edge/e1"


async def test_health_and_reflection_are_for_all_of_ours(site):
    """Any identity may ask whether a server is well and what it offers."""
    for who in (ALICE, EDGE):
        channel = rpc.channel(f"127.0.0.1:{site.port}", Role.WORKER, site.tls(who))
        async with channel:
            health = health_pb2_grpc.HealthStub(channel)
            answer = await health.Check(health_pb2.HealthCheckRequest(), timeout=10)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
            stub = reflection_pb2_grpc.ServerReflectionStub(channel)
            request = reflection_pb2.ServerReflectionRequest(list_services="")
            call = stub.ServerReflectionInfo(iter([request]), timeout=10)
            names = {each.name for each in (await call.read()).list_services_response.service}
            assert "fastrun.v1.WorkerService" in names
