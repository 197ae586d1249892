"""How gRPC is set up."""

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
