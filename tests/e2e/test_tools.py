"""What an operator sees of a running stack."""

import json
import socket
import struct
from threading import Thread

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from fastrun.service.identity import Role


@pytest.fixture
def fastrun(stack, shared_machine):
    """Run a command on the stack; return what it prints as JSON."""

    def run(*arguments):
        done = shared_machine.run(*arguments, "--json", FASTRUN_DATA=stack.ready["data"])
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def services(stack, address, role):
    """List services as grpcurl does."""
    with stack.channel(address, role) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        answer = next(stub.ServerReflectionInfo(iter([request]), timeout=10))
        return {service.name for service in answer.list_services_response.service}


def test_reflection(stack):
    """Every server tells a grpcurl user its services."""
    worker, ready = stack.fleet().workers[0].address, stack.ready

    assert "fastrun.v1.SchedulerService" in services(
        stack, ready["scheduler_address"], Role.SCHEDULER
    )
    assert {"fastrun.v1.AuthService", "fastrun.v1.AdminService"} <= services(
        stack, ready["auth_address"], Role.AUTH
    )
    assert "fastrun.v1.WorkerService" in services(stack, worker, Role.WORKER)


def test_nobody_speaks_plaintext(stack):
    """Who has no certificate is not answered, by no service."""
    worker, ready = stack.fleet().workers[0].address, stack.ready
    for address in (ready["auth_address"], ready["scheduler_address"], worker):
        with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
            check = health_pb2_grpc.HealthStub(channel).Check
            with pytest.raises(grpc.RpcError) as caught:
                check(health_pb2.HealthCheckRequest(), timeout=10)
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE


def test_fleet(fastrun):
    """The fleet shows workers, slots, models, queues and drift."""
    fleet = fastrun("fleet")

    worker = fleet["workers"][0]
    assert (worker["model"], worker["slots"], worker["state"]) == ("tiny", 4, "serving")
    assert fleet["queues"][0]["model"] == "tiny"
    assert (fleet["drift"], fleet["edges"]) == (0, 1)


def test_models(fastrun):
    """The list of models says which of them can be asked."""
    models = fastrun("model", "list")

    assert {model["model"]: model["ready"] for model in models}["tiny"] is True


def test_life_of_a_key(stack, fastrun, shared_machine, eventually):
    """An account that is approved gets a key that works until it is revoked."""
    account = fastrun("account", "create", "ada")
    assert account["state"] == "pending"
    assert fastrun("account", "approve", "ada")["state"] == "approved"
    key = fastrun("key", "issue", "ada", "--name", "laptop")

    def status():
        with stack.client().with_options(api_key=key["key"]) as client:
            return client.models.with_raw_response.list().http_response.status_code

    assert status() == 200
    listed = fastrun("key", "list", "ada")
    assert [each["id"] for each in listed] == [key["id"]]
    assert key["key"] not in json.dumps(listed)
    assert fastrun("key", "revoke", key["id"])["state"] == "revoked"
    assert fastrun("account", "suspend", "ada")["state"] == "suspended"
    assert {"ada", "dev"} <= {each["name"] for each in fastrun("account", "list")}


def test_refusal_is_one_sentence(stack, shared_machine):
    """What the service refuses is one sentence and status 1."""
    done = shared_machine.run("account", "approve", "nobody", FASTRUN_DATA=stack.ready["data"])

    assert done.returncode == 1
    assert done.stderr.startswith("fastrun: account 'nobody' does not exist")
    assert done.stderr.count("\n") == 1


def http2_frame(kind, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes((kind, 0)) + bytes(4) + payload


def test_server_that_goes_away(shared_machine):
    """A server that turns a command away is told in our sentence alone, not in gRPC's own line."""

    def turn_away(server):
        connection, _ = server.accept()
        with connection:
            connection.recv(1 << 16)
            last_stream, internal_error = 0, 2
            going = struct.pack(">II", last_stream, internal_error) + b"\x1b[2J"
            connection.sendall(http2_frame(4) + http2_frame(7, going))
            connection.recv(1 << 16)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = Thread(target=turn_away, args=(server,))
        thread.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        done = shared_machine.run("fleet", "--scheduler", address)
        thread.join()

    assert done.returncode == 1
    assert done.stderr == (
        f"fastrun: nothing answers at {address}: start it with fastrun up, or say with "
        "--context which deployment is meant\n"
    )


def test_a_key_in_place_of_its_id_is_not_repeated(stack, fastrun, shared_machine):
    """Who gives `key revoke` the key itself is told what it wants, without the secret."""
    key = stack.ready["api_key"]
    done = shared_machine.run("key", "revoke", key, FASTRUN_DATA=stack.ready["data"])
    assert done.returncode == 1
    assert done.stderr == ("fastrun: give the key's id, key_..., as `fastrun key list` shows it\n")


def test_bench_wants_an_address(shared_machine):
    """A base URL that is none is one sentence."""
    done = shared_machine.run("bench", "--base-url", "foo", "--api-key", "k", "--model", "m")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "fastrun: --base-url must be like http://host:8000/v1\n"


def test_an_operator_elsewhere(stack, fastrun, shared_machine):
    """A context makes whoever has it an operator by name, and says so before it is too late."""
    bundle = shared_machine.root / "alice.toml"
    folder = {"FASTRUN_DATA": stack.ready["data"]}
    made = shared_machine.run("operator", "add", "alice", "-o", str(bundle), **folder)
    assert made.returncode == 0, made.stderr
    assert bundle.stat().st_mode & 0o777 == 0o600

    assert shared_machine.run("context", "add", "lab", str(bundle)).returncode == 0
    shared_machine.run("context", "use", "lab")
    listed = json.loads(shared_machine.run("context", "list", "--json").stdout)
    assert [(each["name"], each["operator"], each["current"]) for each in listed] == [
        ("local", "", False),
        ("lab", "alice", True),
    ]
    for options in ((), ("--context", "lab"), ("--context", str(bundle))):
        done = shared_machine.run("fleet", "--json", *options)
        assert json.loads(done.stdout)["edges"] == 1, done.stderr
    assert shared_machine.run("context", "remove", "lab").returncode == 0
    assert "nothing answers at 127.0.0.1:7002" in shared_machine.run("fleet").stderr


def test_an_operator_of_another_deployment(stack, shared_machine):
    """A certificate of another CA is refused, in a sentence."""
    certs, bundle = shared_machine.root / "other", shared_machine.root / "bob.toml"
    address = stack.ready["scheduler_address"]
    shared_machine.run("certs", str(certs))
    made = shared_machine.run(
        *("operator", "add", "bob", "--certs", str(certs), "-o", str(bundle)),
        *("--auth", stack.ready["auth_address"], "--scheduler", address),
    )
    assert made.returncode == 0, made.stderr

    done = shared_machine.run("fleet", "--context", str(bundle))

    assert done.returncode == 1
    assert done.stderr == (f"fastrun: {address} is of another deployment than our certificate\n")
