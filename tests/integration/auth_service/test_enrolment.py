"""Machines that join as workers: an auth service with a CA, and the command that joins."""

import asyncio
import json
import os
import shutil
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import SystemRandom

import asyncpg
import grpc
import grpc.aio
import msgspec
import pytest
from cryptography import x509

from auth_service.__main__ import AuthService
from auth_service.config import Config
from fastrun.cli.joined import Joined
from fastrun.cli.joining import Trust
from fastrun.local.certificates import EVERYONE, provide
from fastrun.service import config, rpc
from fastrun.service.authority import Authority, identity_of
from fastrun.service.errors import ServiceError
from fastrun.service.identity import Identity, Role
from fastrun.service.join_token import JoinToken, new_secret, secret_sha256
from fastrun.service.lifecycle import StartError
from fastrun.service.tls import Tls
from fastrun.v1 import admin_pb2, admin_pb2_grpc, auth_pb2, auth_pb2_grpc
from fastrun.v1.error_pb2 import ErrorReason
from gpu_worker.renewal import Renewal

HERE = "127.0.0.1:0"
PATIENCE_S = 20


class Done:
    """What a command has said."""

    def __init__(self, status, stdout, stderr):
        self.status, self.stdout, self.stderr = status, stdout, stderr


class Head:
    """A deployment that machines can join."""

    def __init__(self, certs, home):
        self.certs = certs
        self.home = home
        self.ports = {}
        self.service = None

    async def start(self, database, **settings):
        auth = self.certs / "auth"
        ours = {
            "listen": HERE,
            "admin_listen": HERE,
            "enrol_listen": HERE,
            "enrol_ca_key": str(self.certs / "ca" / "key.pem"),
        }
        self.service = AuthService(
            Config(
                database_url=database,
                pepper="ab" * 32,
                tls_cert=str(auth / "cert.pem"),
                tls_key=str(auth / "key.pem"),
                tls_ca=str(auth / "ca.pem"),
                **(ours | settings),
            )
        )
        self.ports = await self.service.start()

    @property
    def address(self):
        return f"127.0.0.1:{self.ports['enrol']}"

    def channel(self, role, port="grpc"):
        tls = Tls.of_folder(self.certs / role)
        return rpc.channel(f"127.0.0.1:{self.ports[port]}", Role.AUTH, tls)

    async def token(self, worker="", **wrong):
        """Make a token, as an operator's command does."""
        secret = new_secret(SystemRandom())
        async with self.channel("operator") as channel:
            answer = await admin_pb2_grpc.AdminServiceStub(channel).CreateWorkerToken(
                admin_pb2.CreateWorkerTokenRequest(
                    token_sha256=secret_sha256(secret), worker_id=worker
                )
            )
        assert answer.port == self.ports["enrol"]
        return JoinToken(secret, wrong.get("ca_sha256", answer.ca_sha256)).text

    async def run(self, *arguments, **environ):
        """Run a command of a user who has nothing of this deployment's."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "fastrun.cli", "worker", *arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "FASTRUN_CONTEXT": "local", "XDG_DATA_HOME": str(self.home)}
            | environ,
        )
        stdout, stderr = await process.communicate()
        return Done(process.returncode, stdout.decode(), stderr.decode())

    async def join(self, token, folder, *options, head=None):
        return await self.run(
            *("join", head or self.address, "--token", token, "--no-start"),
            *("--data", str(folder), *options),
        )


@pytest.fixture
def certs(tmp_path):
    """The certificates of a deployment."""
    provide(tmp_path / "certs", EVERYONE, datetime.now(UTC))
    return tmp_path / "certs"


@pytest.fixture
async def head(certs, database, tmp_path):
    """A running one, whose auth service workers reach where it is."""
    head = Head(certs, tmp_path / "home")
    try:
        await head.start(database)
        yield head
    finally:
        await head.service.stop()


def cert_of(folder):
    return x509.load_pem_x509_certificate((folder / "cert.pem").read_bytes())


async def test_a_machine_joins_and_is_a_worker(head, tmp_path):
    """One command gives it a certificate of the CA, for a key that it has made itself."""
    folder = tmp_path / "worker"
    done = await head.join(await head.token(), folder, "--name", "gpu-1", "--model", "m.toml")

    assert done.status == 0, done.stderr
    assert "worker/gpu-1" in done.stderr
    assert identity_of(cert_of(folder)) == Identity(Role.WORKER, "gpu-1")
    left = cert_of(folder).not_valid_after_utc - datetime.now(UTC)
    assert timedelta(days=29) < left <= timedelta(days=30)
    kept = msgspec.json.decode((folder / "worker.json").read_bytes(), type=Joined)
    assert kept.scheduler_addresses() == ["127.0.0.1:7002"]
    assert (kept.worker_id, kept.model, kept.port) == ("gpu-1", "m.toml", 7003)
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    assert folder.stat().st_mode & 0o777 == 0o700
    # It is what a worker shows, and the auth service takes it for one.
    address = f"127.0.0.1:{head.ports['grpc']}"
    async with rpc.channel(address, Role.AUTH, Tls.of_folder(folder)) as channel:
        answer = await auth_pb2_grpc.AuthServiceStub(channel).Renew(auth_pb2.RenewRequest())
    assert not answer.cert_pem
    assert answer.again_in_s == 24 * 3600


async def test_a_machine_that_has_joined_uses_what_it_has(head, tmp_path):
    """The same command again, with or without its token, needs no new one and keeps the choices."""
    folder = tmp_path / "worker"
    token = await head.token()
    first = await head.join(token, folder, "--name", "gpu-1", "--port", "7013")
    assert first.status == 0, first.stderr
    cert = (folder / "cert.pem").read_bytes()

    for again in (
        await head.join(token, folder, "--advertise", "gpu-1.example.org:7013"),
        await head.run("join", head.address, "--no-start", "--data", str(folder)),
    ):
        assert again.status == 0, again.stderr

    assert (folder / "cert.pem").read_bytes() == cert
    kept = msgspec.json.decode((folder / "worker.json").read_bytes(), type=Joined)
    assert (kept.port, kept.advertise) == (7013, "gpu-1.example.org:7013")


async def test_a_token_is_good_once(head, tmp_path):
    """A second machine is told who has used it, and how to get another."""
    token = await head.token()
    await head.join(token, tmp_path / "one", "--name", "gpu-1")

    done = await head.join(token, tmp_path / "two", "--name", "gpu-2")

    assert done.status == 1
    assert "worker gpu-1 has joined by this token" in done.stderr
    assert "fastrun worker token" in done.stderr
    assert not (tmp_path / "two" / "cert.pem").exists()


async def test_a_lost_answer_is_asked_for_again(head, tmp_path):
    """A machine that was cut off after its token was used joins with the same token."""
    folder, token = tmp_path / "worker", await head.token()
    await head.join(token, folder, "--name", "gpu-1")
    # As it was before the answer came: there is a key, and nothing else.
    shutil.move(folder / "key.pem", folder / "joining.pem")
    for name in ("cert.pem", "ca.pem", "worker.json"):
        (folder / name).unlink()

    done = await head.join(token, folder, "--name", "gpu-1")

    assert done.status == 0, done.stderr
    assert not (folder / "joining.pem").exists()


async def test_a_token_ends(head, database, tmp_path):
    """After its hour it opens nothing."""
    token = await head.token()
    connection = await asyncpg.connect(database)
    lasts = await connection.fetchval("select max(expires_at) - now() from worker_tokens")
    await connection.execute("update worker_tokens set expires_at = now()")
    await connection.close()

    done = await head.join(token, tmp_path / "worker")

    assert timedelta(minutes=59) < lasts <= timedelta(hours=1)
    assert done.status == 1
    assert "this token has expired: make another one with fastrun worker token" in done.stderr


async def test_a_name_belongs_to_one_machine(head, tmp_path):
    """Another one takes it only by a token that names it, and then the former stays none."""
    await head.join(await head.token(), tmp_path / "one", "--name", "gpu-1")

    refused = await head.join(await head.token(), tmp_path / "two", "--name", "gpu-1")
    assert refused.status == 1
    assert "another machine is worker gpu-1" in refused.stderr
    other = await head.join(await head.token("gpu-1"), tmp_path / "two", "--name", "gpu-3")
    assert "this token is for worker gpu-1: join with --name gpu-1" in other.stderr
    taken = await head.join(await head.token("gpu-1"), tmp_path / "two", "--name", "gpu-1")
    assert taken.status == 0, taken.stderr

    address = f"127.0.0.1:{head.ports['grpc']}"
    async with rpc.channel(address, Role.AUTH, Tls.of_folder(tmp_path / "one")) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await auth_pb2_grpc.AuthServiceStub(channel).Renew(auth_pb2.RenewRequest())
    assert "another machine has joined as worker gpu-1" in error.value.details()


async def test_the_secret_goes_to_the_deployment_of_the_token_only(head, certs, tmp_path):
    """A head with another CA than the token's is refused before it has heard anything of it."""
    other = Authority.new(datetime.now(UTC)).fingerprint

    done = await head.join(await head.token(ca_sha256=other), tmp_path / "worker")

    assert done.status == 1
    assert f"{head.address} is of another deployment than this token" in done.stderr


class Impostor:
    """Somebody between: names the CA that it has seen at the head, without a certificate of it."""

    def __init__(self, ca):
        self.ca = ca
        self.heard = []

    async def GetAuthority(self, request, context):
        return auth_pb2.GetAuthorityResponse(ca_pem=self.ca)

    async def Enrol(self, request, context):
        self.heard.append(request)
        raise AssertionError


async def test_an_impostor_hears_no_secret(head, certs, tmp_path):
    """Who repeats the right CA's certificate, and has none of its own, is found out as well."""
    provide(tmp_path / "theirs", EVERYONE, datetime.now(UTC))
    impostor = Impostor((certs / "ca" / "ca.pem").read_text())
    server = rpc.RpcServer(Tls.of_folder(tmp_path / "theirs" / "auth"), strangers=True)
    server.add(
        auth_pb2.DESCRIPTOR.services_by_name["EnrolmentService"],
        auth_pb2_grpc.add_EnrolmentServiceServicer_to_server,
        impostor,
    )
    port = await server.start(HERE)
    try:
        done = await head.join(await head.token(), tmp_path / "worker", head=f"127.0.0.1:{port}")
    finally:
        await server.stop(0)

    assert done.status == 1
    assert "is something between this machine and the head?" in done.stderr
    assert impostor.heard == []


async def test_what_else_answers(head, tmp_path):
    """Nothing, plaintext, and another port of the head: each is told with what to look at."""
    token = await head.token()
    closed = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    nothing = f"127.0.0.1:{closed.sockets[0].getsockname()[1]}"
    closed.close()
    await closed.wait_closed()
    admin, grpc_port = (f"127.0.0.1:{head.ports[name]}" for name in ("admin", "grpc"))

    for address, told in (
        (nothing, f"nothing answers at {nothing}"),
        (admin, f"what answers at {admin} speaks no TLS"),
        (grpc_port, f"what answers at {grpc_port} lets no machines join"),
    ):
        done = await head.join(token, tmp_path / "worker", head=address)
        assert done.status == 1
        assert told in done.stderr
        assert "7004 unless it was changed" in done.stderr
    # None of them has used it.
    assert (await head.join(token, tmp_path / "worker")).status == 0


async def test_a_clock_that_is_wrong(certs, database, tmp_path):
    """A certificate that has ended, or has not begun by our clock, is told as what it is."""
    authority = Authority.of_pem(
        (certs / "ca" / "key.pem").read_bytes(), (certs / "ca" / "ca.pem").read_bytes()
    )
    head = Head(certs, tmp_path / "home")
    now = datetime.now(UTC)
    for then, told in (
        (now + timedelta(days=2), "set this clock"),
        (
            now - timedelta(days=700),
            "renew it there with fastrun certs; or set this machine's clock",
        ),
    ):
        issued = authority.issue(Identity(Role.AUTH, "default"), then)
        (certs / "auth" / "key.pem").write_bytes(issued.key)
        (certs / "auth" / "cert.pem").write_bytes(issued.cert)
        await head.start(database)
        token = JoinToken(new_secret(SystemRandom()), authority.fingerprint).text
        try:
            done = await head.join(token, tmp_path / "worker")
        finally:
            await head.service.stop()
        assert done.status == 1
        assert told in done.stderr


async def test_what_is_no_token_is_not_sent(head, tmp_path):
    """Typos and half tokens are seen here, and no name that nobody can have is asked for."""
    token = await head.token()
    for given, told in (
        (token[:-1], "copy it anew"),
        (token[:10] + ("a" if token[10] != "a" else "b") + token[11:], "typo"),
    ):
        done = await head.join(given, tmp_path / "worker")
        assert done.status == 1
        assert told in done.stderr
        assert given not in done.stderr
    named = await head.join(token, tmp_path / "worker", "--name", "a b")
    assert "'a b' is no name" in named.stderr


async def test_without_what_a_worker_needs(head, tmp_path):
    """A machine that lacks a package says which, and its token is good still."""
    lacks, folder, token = tmp_path / "lacks", tmp_path / "worker", await head.token()
    lacks.mkdir()
    (lacks / "jinja2.py").write_text('raise ModuleNotFoundError(name="jinja2")\n')
    wants = ("join", head.address, "--token", token, "--data", str(folder))

    done = await head.run(*wants, PYTHONPATH=str(lacks))
    joined = await head.join(token, folder)
    ran = await head.run("run", "--data", str(folder), PYTHONPATH=str(lacks))

    missing = "fastrun: jinja2 is missing: run pip install '.[local]' in fastrun's folder\n"
    assert (done.status, done.stderr) == (1, missing)
    assert joined.status == 0
    assert (ran.status, ran.stderr) == (1, missing)


async def test_without_a_token(head, tmp_path):
    """A machine that has not joined is told where tokens come from, and runs nothing."""
    joined = await head.run("join", head.address, "--data", str(tmp_path / "worker"))
    ran = await head.run("run", "--data", str(tmp_path / "nowhere"))

    assert not (tmp_path / "nowhere").exists()
    assert "make a token with fastrun worker token on the head" in joined.stderr
    assert "join first, with fastrun worker join" in ran.stderr
    assert joined.status == ran.status == 1


async def test_a_certificate_that_has_ended(certs, database, tmp_path):
    """A worker that was away for too long is told to join again, and can under its old name."""
    head, folder = Head(certs, tmp_path / "home"), tmp_path / "worker"
    await head.start(database, enrol_certificate_days=1e-6)
    try:
        await head.join(await head.token(), folder, "--name", "gpu-1")
        ended = await head.run("run", "--data", str(folder))
        again = await head.join(await head.token(), folder)
    finally:
        await head.service.stop()

    assert ended.status == 1
    assert "the certificate of this machine ended" in ended.stderr
    assert "with a token of fastrun worker token" in ended.stderr
    assert "worker/gpu-1" in again.stderr


async def test_a_token_of_the_command(head, tmp_path):
    """`fastrun worker token` prints the token for scripts, and beside it what to do with it."""
    context = tmp_path / "ada.toml"
    services = ("--auth", f"127.0.0.1:{head.ports['grpc']}", "--scheduler", "127.0.0.1:1")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "fastrun.cli", "operator", "add", "ada", "--certs"),
        *(str(head.certs), *services, "--output", str(context)),
        stdout=asyncio.subprocess.DEVNULL,
    )
    assert await process.wait() == 0

    plain = await head.run("token", "--worker", "gpu-1", "--context", str(context))
    as_json = await head.run("token", "--json", "--context", str(context))

    assert plain.status == 0, plain.stderr
    joins = f"fastrun worker join HEAD:{head.ports['enrol']} --name gpu-1 --token {plain.stdout}"
    assert joins in plain.stderr
    assert (
        await head.join(plain.stdout.strip(), tmp_path / "worker", "--name", "gpu-1")
    ).status == 0
    assert json.loads(as_json.stdout)["port"] == head.ports["enrol"]
    async with head.channel("operator") as channel:
        audit = await admin_pb2_grpc.AdminServiceStub(channel).ListAudit(
            admin_pb2.ListAuditRequest()
        )
    assert [(each.actor, each.action) for each in audit.records] == [
        ("worker/gpu-1", "worker_joined"),
        ("operator/ada", "worker_token_created"),
        ("operator/ada", "worker_token_created"),
    ]
    assert JoinToken.parse(plain.stdout).secret not in "".join(map(str, audit.records))


async def test_nothing_else_is_open_without_a_certificate(head):
    """Of all calls, the port for machines that join answers its own two and the health check."""
    ca = (head.certs / "operator" / "ca.pem").read_bytes()
    async with rpc.channel(head.address, Role.AUTH, Trust(ca)) as channel:
        enrolment = auth_pb2_grpc.EnrolmentServiceStub(channel)
        answer = await enrolment.GetAuthority(auth_pb2.GetAuthorityRequest())
        assert answer.ca_pem.encode() == ca
        for call in (
            "/fastrun.v1.AuthService/VerifyKey",
            "/fastrun.v1.AuthService/Renew",
            "/fastrun.v1.AdminService/CreateWorkerToken",
        ):
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await channel.unary_unary(call)(b"")
            assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED
        reflection = channel.stream_stream(
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
        )()
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await reflection.read()
        assert error.value.code() is grpc.StatusCode.PERMISSION_DENIED
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await enrolment.Enrol(auth_pb2.EnrolRequest(csr_pem="x" * (1 << 16)))
        assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_strangers_hear_of_the_ca_without_its_key(head):
    """What they are told is public, so nothing secret is read for it."""
    ca = (head.certs / "operator" / "ca.pem").read_bytes()
    (head.certs / "ca" / "key.pem").unlink()
    async with rpc.channel(head.address, Role.AUTH, Trust(ca)) as channel:
        enrolment = auth_pb2_grpc.EnrolmentServiceStub(channel)
        answer = await enrolment.GetAuthority(auth_pb2.GetAuthorityRequest())
        assert answer.ca_pem.encode() == ca


async def test_nobody_joins_where_it_is_not_set(certs, database, tmp_path):
    """Without its two settings there is no port, no token and no renewal."""
    head = Head(certs, tmp_path / "home")
    await head.start(database, enrol_listen="", enrol_ca_key="")
    try:
        assert set(head.ports) == {"grpc", "admin"}
        async with head.channel("operator") as channel:
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await admin_pb2_grpc.AdminServiceStub(channel).CreateWorkerToken(
                    admin_pb2.CreateWorkerTokenRequest(token_sha256=b"x" * 32)
                )
    finally:
        await head.service.stop()
    assert ServiceError.of_rpc(error.value).detail.reason == ErrorReason.ERROR_REASON_CONFLICT
    assert "FASTRUN_AUTH_ENROL_LISTEN" in error.value.details()


async def test_a_key_of_another_ca(certs, database, tmp_path):
    """An auth service whose CA's key is not the one that it trusts first does not start."""
    provide(tmp_path / "other", EVERYONE, datetime.now(UTC))
    head = Head(certs, tmp_path / "home")
    with pytest.raises(StartError, match="the key is not that of the certificate"):
        await head.start(database, enrol_ca_key=str(tmp_path / "other" / "ca" / "key.pem"))
    await head.service.stop()


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"ENROL_LISTEN": HERE}, "enrol_ca_key need each other"),
        ({"ENROL_CA_KEY": "key.pem"}, "enrol_ca_key need each other"),
        ({"ENROL_LISTEN": HERE, "ENROL_CA_KEY": "key.pem"}, "needs tls_cert"),
    ],
)
def test_settings_that_do_not_fit(settings, told):
    """What cannot work is said at the start."""
    environ = {"DATABASE_URL": "postgresql://", "FASTRUN_AUTH_PEPPER": "ab" * 32}
    environ |= {f"FASTRUN_AUTH_{name}": value for name, value in settings.items()}
    with pytest.raises(config.ConfigError, match=told):
        config.load(Config, "auth", environ)


async def test_a_certificate_is_renewed_while_the_worker_runs(certs, database, tmp_path):
    """Once its time has come, and the auth service is there, it has a new one for the same key."""
    head, folder = Head(certs, tmp_path / "home"), tmp_path / "worker"
    await head.start(database, enrol_certificate_days=1)
    await head.join(await head.token(), folder, "--name", "gpu-1")
    await head.service.stop()
    first = cert_of(folder)
    log = tmp_path / "worker.log"
    with log.open("wb") as output:
        worker = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "fastrun.cli", "worker", "run", "--data", str(folder)),
            env={
                **os.environ,
                "FASTRUN_WORKER_ENGINE": "scripted",
                "FASTRUN_WORKER_LISTEN": HERE,
                "FASTRUN_WORKER_ADMIN_LISTEN": HERE,
                "FASTRUN_WORKER_RENEW_ADDRESS": f"127.0.0.1:{head.ports['grpc']}",
            },
            stdout=output,
            stderr=output,
        )
    try:
        await until(lambda: "certificate_not_renewed" in log.read_text())
        await head.start(
            database, listen=f"127.0.0.1:{head.ports['grpc']}", enrol_certificate_days=20
        )
        await until(lambda: "certificate_renewed" in log.read_text())
        worker.terminate()
        assert await asyncio.wait_for(worker.wait(), PATIENCE_S) == 0
    finally:
        if worker.returncode is None:
            worker.kill()
            await worker.wait()
        await head.service.stop()

    second = cert_of(folder)
    assert second.public_key() == first.public_key()
    assert second.not_valid_after_utc - datetime.now(UTC) > timedelta(days=19)
    assert identity_of(second) == Identity(Role.WORKER, "gpu-1")
    assert Tls.of_folder(folder).current().cert == (folder / "cert.pem").read_bytes()


async def until(condition):
    """Wait for a condition."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.05)


async def test_an_auth_service_that_is_away_ends_no_worker(tmp_path, certs):
    """A renewal that nobody answers is asked for again, and changes no file."""
    folder = certs / "worker"
    before = (folder / "cert.pem").read_bytes()
    files = {"cert": folder / "cert.pem", "ca": folder / "ca.pem"}
    task = asyncio.create_task(Renewal("127.0.0.1:1", Tls.of_folder(folder), **files).run())
    done, _ = await asyncio.wait({task}, timeout=0.5)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    assert not done
    assert (folder / "cert.pem").read_bytes() == before


def test_the_worker_is_told_by_its_environment(tmp_path):
    """What was told at the join becomes settings, and what the operator has set stands."""
    from fastrun.cli.joined import environment  # noqa: PLC0415 - beside its test
    from gpu_worker.config import Config as WorkerConfig  # noqa: PLC0415 - beside its test

    joined = Joined(
        head="head.example.org:7004",
        token_sha256="",
        worker_id="gpu-1",
        schedulers=[":7002", "other.example.org:7012"],
        auth=":7001",
        port=7013,
    )
    environ = environment(
        tmp_path, joined, {"FASTRUN_WORKER_SLOTS": "4", "FASTRUN_WORKER_MODEL": "m"}
    )
    loaded = config.load(WorkerConfig, "worker", environ)

    assert loaded.scheduler_addresses == ["head.example.org:7002", "other.example.org:7012"]
    assert loaded.renew_address == "head.example.org:7001"
    assert (loaded.listen, loaded.worker_id) == ("0.0.0.0:7013", "gpu-1")
    assert (loaded.slots, loaded.model) == (4, "m")
    assert loaded.tls_key == str(Path(tmp_path, "key.pem"))
