"""Where a worker says that edges reach it."""

import socket

import pytest

from gpu_worker.addresses import advertised


async def test_an_address_that_was_set_stands():
    """A worker that listens at one address is reached there."""
    assert await advertised("192.0.2.7:7003", 7003, ["127.0.0.1:7002"]) == "192.0.2.7:7003"
    assert await advertised("[2001:db8::7]:0", 41, ["127.0.0.1:7002"]) == "[2001:db8::7]:41"


@pytest.mark.parametrize(
    "schedulers", [["127.0.0.1:7002"], ["no.such.host.invalid:1", "127.0.0.1:1"]]
)
async def test_the_way_to_the_schedulers_says_it(schedulers):
    """One that listens everywhere is reached where it comes from, by the first that has an address."""
    assert await advertised("0.0.0.0:7003", 7003, schedulers) == "127.0.0.1:7003"


async def test_without_a_way_the_name_has_to_do():
    """Where no scheduler can be resolved the host's name is the best there is."""
    expected = f"{socket.gethostname()}:7003"

    assert await advertised("0.0.0.0:7003", 7003, []) == expected
    assert await advertised("0.0.0.0:7003", 7003, ["no.such.host.invalid:1"]) == expected


def _has_ipv6():
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("::1", 1))
        except OSError:
            return False
    return True


@pytest.mark.skipif(not _has_ipv6(), reason="there is no IPv6 here")
async def test_an_ipv6_address_is_in_brackets():
    """A worker that listens on all addresses of both kinds follows the schedulers' kind."""
    assert await advertised("[::]:7003", 7003, ["[::1]:7002"]) == "[::1]:7003"


async def test_ipv4_only_is_not_reached_by_ipv6():
    """Who listens on 0.0.0.0 tells no IPv6 address."""
    assert ":7003" in (found := await advertised("0.0.0.0:7003", 7003, ["[::1]:7002"]))
    assert "::1" not in found
