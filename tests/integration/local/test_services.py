"""Services of a stack that end and are started again, as real processes."""

import io
import json
import os
import socket
from datetime import UTC, datetime

import pytest

from fastrun.local.certificates import EVERYONE, provide
from fastrun.local.child import Lifeline
from fastrun.local.errors import LocalError
from fastrun.local.output import Output
from fastrun.local.supervised import Plan, Service, Surroundings
from fastrun.service.lifecycle import ListenError

SCHEDULER = Plan(name="scheduler", module="scheduler", service="scheduler")


@pytest.fixture
async def scheduler(tmp_path):
    """A scheduler that serves, and what its ports were, from its log."""
    provide(tmp_path / "certs", EVERYONE, datetime.now(UTC))
    logs = tmp_path / "logs"
    logs.mkdir()
    around = Surroundings(
        dict(os.environ), Lifeline(), logs, tmp_path / "certs", Output(io.StringIO())
    )
    service = Service(SCHEDULER, around)
    await service.start()

    def ports():
        lines = map(json.loads, (logs / "scheduler.log").read_text().splitlines())
        return [
            (line["grpc"], line["admin"]) for line in lines if line["event"] == "service_started"
        ]

    yield service, ports
    await service.stop()


def take(port):
    taken = socket.create_server(("127.0.0.1", port))
    taken.listen()
    return taken


async def test_a_taken_admin_port_is_in_nobody_s_way(scheduler):
    """The service has the port again that others know, and another one for admins."""
    service, ports = scheduler
    address = service.address
    ((_, admin),) = ports()
    service.kill_now()
    await service.wait()
    with take(admin):
        await service.start()
        assert service.address == address
        assert ports()[-1][1] != admin


async def test_a_taken_port_that_others_know_is_named(scheduler):
    """It cannot be another one, so the sentence says which one it is; once free, it is used."""
    service, _ = scheduler
    address, port = service.address, service.port
    service.kill_now()
    await service.wait()
    with take(port), pytest.raises(LocalError) as refused:
        await service.start()
    assert str(refused.value) == f"scheduler could not start: {ListenError(address)}"
    await service.start()
    assert service.address == address
