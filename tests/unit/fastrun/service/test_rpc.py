"""How gRPC is set up."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from grpc._cython import cygrpc

from fastrun.service import rpc


@pytest.mark.parametrize("options", [rpc.CHANNEL_OPTIONS, rpc.SERVER_OPTIONS])
def test_the_library_knows_every_option(options):
    """An option that gRPC does not know is ignored, so that a misspelt one would do nothing."""
    library = Path(cygrpc.__file__).read_bytes()
    assert [name for name, _ in options if name.encode() not in library] == []


def test_servers_take_the_clients_keepalive():
    """A client that pings more often than the server allows is sent away."""
    client = dict(rpc.CHANNEL_OPTIONS)
    server = dict(rpc.SERVER_OPTIONS)
    assert server["grpc.http2.min_ping_interval_without_data_ms"] < client["grpc.keepalive_time_ms"]


START = """
import importlib, os, sys

class Gate:
    def find_spec(self, name, path=None, target=None):
        if name == "grpc":
            print(os.environ.get("GRPC_EXPERIMENTS"), os.environ.get("GRPC_VERBOSITY"))

sys.meta_path.insert(0, Gate())
importlib.import_module(sys.argv[1])
"""
CALL = """
import asyncio
from fastrun.service import rpc

async def call():
    server = rpc.RpcServer()
    port = await server.start("127.0.0.1:0")
    async with rpc.channel(f"127.0.0.1:{port}") as channel:
        await channel.channel_ready()
    await server.stop(0)

asyncio.run(call())
"""


def run(script, *arguments, **settings):
    """Run a script in a process of its own, of whose environment gRPC reads only these settings."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        check=True,
        env=environ | settings,
    )


@pytest.mark.parametrize("service", ["auth_service", "edge", "gpu_worker", "scheduler"])
def test_grpc_is_set_up_before_it_is_loaded(service):
    """A service chooses how gRPC waits and what it says before gRPC reads that; so may others."""
    waits, says = run(START, f"{service}.__main__").stdout.split()
    assert "-event_engine_client" in waits
    assert says == "ERROR"
    chosen = run(
        START,
        f"{service}.__main__",
        GRPC_EXPERIMENTS="event_engine_fork",
        GRPC_VERBOSITY="DEBUG",
    )
    assert chosen.stdout.split() == ["event_engine_fork", "DEBUG"]


def test_the_library_knows_how_it_is_to_wait():
    """What gRPC does not know of that it says, and uses its own way."""
    assert "Unknown experiment: of_ours" in run(CALL, GRPC_EXPERIMENTS="-of_ours").stderr
    assert run(CALL).stderr == ""
