"""The admin port."""

import errno
import re
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import pytest
from prometheus_client import CollectorRegistry, Counter

from fastrun.service import metrics
from fastrun.service.metrics import AdminServer


def fetch(port, path, host="127.0.0.1"):
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://{host}:{port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def _has_ipv6():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.fixture
def admin():
    registry = CollectorRegistry()
    Counter("fastrun_test_things", "Things.", registry=registry).inc(3)
    problems = {"alive": None, "ready": None}
    server = AdminServer(registry, alive=lambda: problems["alive"], ready=lambda: problems["ready"])
    port = server.start("127.0.0.1", 0)
    yield port, problems
    server.close()


def test_metrics_are_served(admin):
    """The registry's metrics come out in Prometheus' text format."""
    status, body = fetch(admin[0], "/metrics")
    assert status == 200
    assert "fastrun_test_things_total 3.0" in body


def test_checks_say_what_is_wrong(admin):
    """A check that fails gives 503 with its sentence, and ok otherwise."""
    port, problems = admin
    assert fetch(port, "/readyz") == (200, "ok\n")
    problems["ready"] = "no scheduler is connected"
    assert fetch(port, "/readyz") == (503, "no scheduler is connected\n")
    assert fetch(port, "/healthz") == (200, "ok\n")


def test_other_paths_are_not_found(admin):
    """Any other path is a 404 that says which there are."""
    status, body = fetch(admin[0], "/")
    assert status == 404
    assert "/metrics" in body


@pytest.mark.skipif(not _has_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize("host", ["::1", "::"])
def test_hosts_with_ipv6_alone_are_served(host):
    """It listens at addresses of either kind, as the service itself does."""
    server = AdminServer(CollectorRegistry(), alive=lambda: None, ready=lambda: None)
    port = server.start(host, 0)
    try:
        assert fetch(port, "/readyz", "[::1]") == (200, "ok\n")
        other = AdminServer(CollectorRegistry(), alive=lambda: None, ready=lambda: None)
        with pytest.raises(OSError, match=re.escape(f"cannot listen on [{host}]:{port}: ")):
            other.start(host, port)
    finally:
        server.close()


def test_a_taken_port_is_named(admin):
    """The sentence says which one it is, since nothing else in a service's log does."""
    port, _ = admin
    other = AdminServer(CollectorRegistry(), alive=lambda: None, ready=lambda: None)
    with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}: stop what has"):
        other.start("127.0.0.1", port)


def test_a_probe_succeeds_only_when_ready(admin):
    """The health check of a container ends with 0 if the service is ready, else it says why."""
    port, problems = admin

    def probed(*address):
        command = [sys.executable, "-m", "fastrun.service.probe", *address]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        return done.returncode, done.stderr.strip()

    address = f"127.0.0.1:{port}"
    assert probed(address) == (0, "")
    problems["ready"] = "no database"
    status, said = probed(address)
    assert status == 1
    assert said.startswith(f"{address} is not ready: ")
    assert "no database" in said
    status, said = probed("127.0.0.1:1")
    assert status == 1
    assert said.startswith("nothing answers at 127.0.0.1:1: ")
    for typo in ("127.0.0.1:many", "a" * 100, "../admin"):
        status, said = probed(typo)
        assert status == 1
        assert said.startswith(f"nothing answers at {typo}: ")
        assert "\n" not in said


def test_a_probe_imports_little():
    """It runs every few seconds beside each service, and starts no command line for it."""
    listed = "import sys, fastrun.service.probe; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", listed], check=True, capture_output=True, text=True
    )
    assert not {"typer", "grpc", "structlog", "prometheus_client"} & set(done.stdout.split())


@pytest.fixture
def asked():
    """A client that has asked for a check that waits to be let go, and who waits until it is told.

    Yields:
        The client; the event that lets the check go; what it answers; a function that waits.
    """
    others = set(threading.enumerate())  # of other servers, whose clients may never leave
    entered, let_go = threading.Event(), threading.Event()

    def alive():
        entered.set()
        assert let_go.wait(10)
        return answers.pop()

    def until_handled():
        for thread in set(threading.enumerate()) - others:
            if "process_request" in thread.name:
                thread.join(10)

    answers = [None]
    server = AdminServer(CollectorRegistry(), alive=alive, ready=lambda: None)
    port = server.start("127.0.0.1", 0)
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
        assert entered.wait(10)
        yield client, let_go, answers, until_handled
    server.close()


def test_who_leaves_early_is_no_news(asked, capfd):
    """A client that resets its connection before the answer leaves nothing in the log."""
    client, let_go, _, until_handled = asked
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    let_go.set()
    until_handled()
    assert capfd.readouterr() == ("", "")


def test_a_check_that_raises_is_logged(asked, capfd):
    """A fault of ours is an event with a trace, as everywhere."""
    client, let_go, answers, until_handled = asked
    answers.clear()
    let_go.set()
    assert client.recv(1) == b""
    until_handled()
    told = "".join(capfd.readouterr())
    assert "admin_request_failed" in told
    assert "IndexError" in told


def test_without_files_it_waits(monkeypatch):
    """Who cannot be accepted for lack of files is tried again after a while, not at once."""
    pauses, here, sleep = [], threading.current_thread(), time.sleep

    def pause(seconds):
        if threading.current_thread() is here:
            pauses.append(seconds)
        else:  # of what others have left running in this process
            sleep(seconds)

    monkeypatch.setattr(metrics.time, "sleep", pause)
    server = metrics._Server("127.0.0.1", 0, None)
    server.socket.close()
    server.socket = Full()
    with pytest.raises(OSError, match="files"):
        server.get_request()
    assert pauses == [metrics.NO_FILES_PAUSE_S]


class Full:
    """A listening socket of a process that has no file left."""

    def accept(self):
        raise OSError(errno.EMFILE, "too many open files")
