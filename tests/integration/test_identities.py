"""All services with certificates: who may call what, and certificates that change under them."""

import asyncio
import shutil
from datetime import UTC, datetime
from functools import partial
from random import SystemRandom

import grpc
import grpc.aio
import httpx
import pytest

from auth_service.__main__ import AuthService
from auth_service.config import Config as AuthConfig
from edge.app import Edge
from edge.config import Config as EdgeConfig
from fastrun.local.certificates import EVERYONE, provide
from fastrun.service import api_key, rpc
from fastrun.service.authority import Authority
from fastrun.service.errors import ServiceError
from fastrun.service.identity import Identity, Role
from fastrun.service.tls import Pem, Tls
from fastrun.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    auth_pb2,
    scheduler_pb2,
    scheduler_pb2_grpc,
    worker_pb2,
)
from fastrun.v1.error_pb2 import ErrorReason
from gpu_worker import engines
from gpu_worker.config import Config as WorkerConfig
from gpu_worker.service import WorkerProcess
from scheduler.__main__ import Scheduler
from scheduler.config import Config as SchedulerConfig

LIMIT_S = 20
# A refusal comes at once; a call that is open for so long is not refused.
OPEN_S = 1.0
HERE = "127.0.0.1:0"
EDGE, WORKER, OPERATOR = {Role.EDGE}, {Role.WORKER}, {Role.OPERATOR}
EDGE_OR_OPERATOR = EDGE | OPERATOR
ALL = set(Role)

# Written down apart from fastrun.service.identity: who changes one has to mean it. By service:
# its protos, who serves it, and who may make each call.
TABLE = {
    "AuthService": (
        auth_pb2,
        Role.AUTH,
        {
            **dict.fromkeys(("VerifyKey", "WatchKeys", "RecordUsage", "QueryUsage"), EDGE),
            "Renew": WORKER,
        },
    ),
    "AdminService": (
        admin_pb2,
        Role.AUTH,
        dict.fromkeys(
            (
                *("CreateAccount", "ApproveAccount", "SuspendAccount", "CloseAccount"),
                *("ListAccounts", "IssueKey", "RevokeKey", "RotateKey", "ListKeys"),
                *("SetLimits", "SetPrice", "ListPrices"),
                *("QueryUsage", "RecomputeUsage", "CreateWorkerToken", "ListAudit"),
            ),
            OPERATOR,
        ),
    ),
    "SchedulerService": (
        scheduler_pb2,
        Role.SCHEDULER,
        {
            "EdgeSession": EDGE,
            "WorkerSession": WORKER,
            "ListModels": OPERATOR,
            "ForgetModel": OPERATOR,
            "WatchFleet": OPERATOR,
            "DrainWorker": OPERATOR,
            "FindUsage": EDGE,
        },
    ),
    "WorkerService": (
        worker_pb2,
        Role.WORKER,
        {"Attach": EDGE, "Generate": EDGE_OR_OPERATOR, "GetInfo": ALL, "Drain": OPERATOR},
    ),
}


def tls_settings(certs, role):
    return {f"tls_{name}": str(certs / role / f"{name}.pem") for name in ("cert", "key", "ca")}


class Services:
    """All four, in this process."""

    def __init__(self, certs, database):
        self.certs = certs
        self._database = database
        self._running = {}
        self._ports = {}

    async def start(self):
        """Start all, with certificates."""
        await self._start(
            Role.AUTH, AuthService, AuthConfig, database_url=self._database, pepper="ab" * 32
        )
        await self.start_scheduler()
        schedulers = [self.address(Role.SCHEDULER)]

        def make_worker(config):
            return WorkerProcess(config, partial(engines.load, config), leave=print)

        await self._start(
            Role.WORKER,
            make_worker,
            WorkerConfig,
            engine="scripted",
            scripted_tokens_per_s=0.0,
            scheduler_addresses=schedulers,
        )
        await self._start(
            Role.EDGE,
            Edge,
            EdgeConfig,
            auth_address=self.address(Role.AUTH),
            scheduler_addresses=schedulers,
        )

    async def start_scheduler(self, listen=HERE):
        await self._start(Role.SCHEDULER, Scheduler, SchedulerConfig, listen=listen)

    async def _start(self, role, make, config, **settings):
        settings = {"listen": HERE, "admin_listen": HERE} | settings
        service = make(config(**settings, **tls_settings(self.certs, role)))
        self._ports[role] = await service.start()
        self._running[role] = service

    async def stop(self, *roles):
        for role in roles:
            if role in self._running:
                await self._running.pop(role).stop()

    def address(self, role):
        return f"127.0.0.1:{self._ports[role].get('grpc') or self._ports[role]['http']}"

    async def key(self):
        """Make an account that may call, and return its key."""
        tls, key = Tls.of_folder(self.certs / "operator"), api_key.generate(SystemRandom())
        async with rpc.channel(self.address(Role.AUTH), Role.AUTH, tls) as channel:
            admin = admin_pb2_grpc.AdminServiceStub(channel)
            name = api_key.key_sha256(key).hex()[:12]
            await admin.CreateAccount(admin_pb2.CreateAccountRequest(name=name))
            await admin.ApproveAccount(admin_pb2.ApproveAccountRequest(account=name))
            await admin.IssueKey(
                admin_pb2.IssueKeyRequest(
                    account=name,
                    name="test",
                    key_sha256=api_key.key_sha256(key),
                    prefix=api_key.display_prefix(key),
                )
            )
        return key

    async def chat(self, key):
        """Ask for a completion until it is there; anything but a refusal of ours would raise."""
        async with (
            asyncio.timeout(LIMIT_S),
            httpx.AsyncClient(
                base_url=f"http://{self.address(Role.EDGE)}/v1",
                headers={"authorization": f"Bearer {key}"},
                timeout=LIMIT_S,
            ) as client,
        ):
            body = {"model": "scripted", "messages": [{"role": "user", "content": "Hi"}]}
            while True:
                answer = await client.post("/chat/completions", json=body)
                if answer.status_code == httpx.codes.OK:
                    return answer.json()["usage"]["completion_tokens"]
                assert answer.status_code == httpx.codes.SERVICE_UNAVAILABLE, answer.text
                await asyncio.sleep(0.05)


@pytest.fixture
async def services(tmp_path, database):
    """All services, started."""
    provide(tmp_path / "certs", EVERYONE, datetime.now(UTC))
    services = Services(tmp_path / "certs", database)
    try:
        await services.start()
        yield services
    finally:
        await services.stop(Role.EDGE, Role.WORKER, Role.SCHEDULER, Role.AUTH)


async def attempt(channel, method):
    """Make a call with an empty message; return the status that ended it, or None: it is open."""
    name = f"/{method.containing_service.full_name}/{method.name}"
    kind = "_".join(
        "stream" if streaming else "unary"
        for streaming in (method.client_streaming, method.server_streaming)
    )
    request = None if method.client_streaming else b""
    call = getattr(channel, kind)(name)(request, timeout=LIMIT_S)
    try:
        async with asyncio.timeout(OPEN_S):
            await (call.read() if method.server_streaming else call)
            return None
    except TimeoutError:
        return None
    except grpc.aio.AioRpcError as error:
        return error
    finally:
        call.cancel()


def told(error):
    """Say in short how a call ended; what a service itself says of the request is no refusal."""
    if error is None:
        return "open"
    if error.code() is not grpc.StatusCode.PERMISSION_DENIED:
        return error.code().name if error.code() is grpc.StatusCode.UNAVAILABLE else "open"
    detail = ServiceError.of_rpc(error).detail
    assert detail.reason == ErrorReason.ERROR_REASON_PERMISSION_DENIED
    assert "may not call" in detail.message
    return "refused"


def test_the_table_is_whole():
    """Every call of every service stands in the table."""
    declared, tabled = {}, {}
    for service, (proto, _, calls) in TABLE.items():
        declared[service] = {
            each.name for each in proto.DESCRIPTOR.services_by_name[service].methods
        }
        tabled[service] = set(calls)
    assert tabled == declared
    services = {
        name
        for proto in (admin_pb2, auth_pb2, scheduler_pb2, worker_pb2)
        for name in proto.DESCRIPTOR.services_by_name
    }
    assert set(TABLE) == services - {"EnrolmentService"}  # on a port of its own: test_enrolment


async def outcomes(services, tls):
    """Make every call; return how each ended."""
    found = {}
    for service, (proto, role, _) in TABLE.items():
        async with rpc.channel(services.address(role), role, tls) as channel:
            for method in proto.DESCRIPTOR.services_by_name[service].methods:
                found[service, method.name] = told(await attempt(channel, method))
    return found


@pytest.mark.parametrize("role", Role)
async def test_every_call_by_every_identity(services, role):
    """Each role may make its own calls, and every other one is refused."""
    expected = {
        (service, call): "open" if role in roles else "refused"
        for service, (_, _, calls) in TABLE.items()
        for call, roles in calls.items()
    }
    assert await outcomes(services, Tls.of_folder(services.certs / role)) == expected


class NoCertificate:
    """A client that trusts our CA and shows nothing."""

    def __init__(self, ca):
        self._ca = ca

    def channel_credentials(self):
        return grpc.ssl_channel_credentials(self._ca)


@pytest.mark.parametrize("who", ["nobody", "another CA", "plaintext", "ended"])
async def test_every_call_by_strangers(services, who):
    """Without a certificate of our CA that is good today no server speaks at all."""
    now = datetime.now(UTC)
    ca = (services.certs / "operator" / "ca.pem").read_bytes()
    operator = Identity(Role.OPERATOR, "default")
    if who == "nobody":
        tls = NoCertificate(ca)
    elif who == "another CA":
        issued = Authority.new(now).issue(operator, now)
        tls = Pem(issued.cert, issued.key, ca)
    elif who == "ended":
        key = (services.certs / "ca" / "key.pem").read_bytes()
        issued = Authority.of_pem(key, ca).issue(operator, now, days=-1 / 100)
        tls = Pem(issued.cert, issued.key, ca)
    else:
        tls = None

    assert set((await outcomes(services, tls)).values()) == {"UNAVAILABLE"}


async def hello(services, tls, **names):
    """Say Hello as a worker; return the first answer, or the error that ended the session."""
    hello = {"address": "127.0.0.1:1", "model": {"model": "tiny"}, "slots": 1} | names
    reports = scheduler_pb2.WorkerReports(items=[scheduler_pb2.WorkerReport(hello=hello)])
    address = services.address(Role.SCHEDULER)
    async with rpc.channel(address, Role.SCHEDULER, tls) as channel:
        call = scheduler_pb2_grpc.SchedulerServiceStub(channel).WorkerSession(timeout=LIMIT_S)
        await call.write(reports)
        try:
            return (await call.read()).items[0]
        except grpc.aio.AioRpcError as error:
            return ServiceError.of_rpc(error).detail
        finally:
            call.cancel()


async def test_a_worker_is_itself_by_its_certificate(services):
    """Another worker's certificate does not get its id, and one that both share does."""
    both = [Identity(Role.WORKER, name) for name in ("gpu-1", "gpu-2")]
    provide(services.certs, both, datetime.now(UTC))
    one, two = (Tls.of_folder(services.certs / f"worker-{each.name}") for each in both)
    first = {"worker_id": "first", "instance_id": "first-1"}
    assert (await hello(services, one, **first)).HasField("welcome")
    for instance_id in ("first-1", "first-2"):
        refused = await hello(services, two, **first | {"instance_id": instance_id})
        assert refused.reason == ErrorReason.ERROR_REASON_PERMISSION_DENIED
        assert refused.message == (
            "worker 'first' is known by the certificate of gpu-1, and this one is of gpu-2: "
            "use that certificate, or an id of your own"
        )
    assert (await hello(services, one, **first | {"instance_id": "first-2"})).HasField("welcome")
    second = {"worker_id": "second", "instance_id": "second-1"}
    assert (await hello(services, one, **second)).HasField("welcome")


async def test_a_new_ca_under_a_running_stack(services, tmp_path):
    """All certificates and the CA are exchanged, and every link comes back with the new ones."""
    key = await services.key()
    tokens = await services.chat(key)

    provide(tmp_path / "new", EVERYONE, datetime.now(UTC))
    shutil.copytree(tmp_path / "new", services.certs, dirs_exist_ok=True)

    # A key that nobody knows yet is asked for on a connection that knows the new CA only.
    assert await services.chat(await services.key()) == tokens

    # Edge and worker find a scheduler of the new CA where that of the old one was.
    address = services.address(Role.SCHEDULER)
    await services.stop(Role.SCHEDULER)
    await services.start_scheduler(listen=address)
    assert await services.chat(key) == tokens
