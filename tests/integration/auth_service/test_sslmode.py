"""What sslmode in DATABASE_URL asks for is held to by everything that connects."""

import asyncio
import ssl
import struct
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import UTC, datetime
from random import Random

import pytest
from auth_stores import open_stores

from auth_service.errors import StoreUnavailableError
from auth_service.key_feed import KeyFeed
from auth_service.migrate import check
from fastrun.service.authority import Authority
from fastrun.service.identity import Identity, Role

SSL_REQUEST = struct.pack("!ii", 8, 80877103)


async def refused(dsn):
    """See that migrations, the pool and the listener all refuse to connect."""
    with pytest.raises(StoreUnavailableError):
        await check(dsn)
    stores = await open_stores(dsn, random=Random(1), deadline_s=5)
    feed = KeyFeed(dsn, stores.database)
    feed.start()
    try:
        with pytest.raises(StoreUnavailableError):
            await stores.accounts.list()
        with pytest.raises(StoreUnavailableError):
            await stores.verify("any")
        async with aclosing(feed.watch(0)) as updates:
            with pytest.raises(StoreUnavailableError):
                await anext(updates)
    finally:
        await feed.close()
        await stores.close()


async def test_no_plaintext(database):
    """With sslmode=require nothing goes to a Postgres that has no TLS."""
    await refused(f"{database}?sslmode=require")


async def test_plaintext_if_wanted(database):
    """With sslmode=prefer a Postgres without TLS is taken as it is."""
    await check(f"{database}?sslmode=prefer")


@asynccontextmanager
async def pretender(folder, authority):
    """A server that takes TLS and hangs up: its port, and what it was told within TLS."""
    issued = authority.issue(Identity(Role.AUTH, "a"), datetime.now(UTC))
    (folder / "cert.pem").write_bytes(issued.cert + issued.key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "cert.pem")
    told = []

    async def answer(reader, writer):
        assert await reader.readexactly(len(SSL_REQUEST)) == SSL_REQUEST
        writer.write(b"S")
        with suppress(OSError):
            await writer.start_tls(context)
            told.append(await reader.read(1000))
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], told


@pytest.mark.parametrize(
    ("mode", "is_ours", "is_told"),
    [
        ("verify-ca", False, False),
        ("verify-full", True, False),  # its certificate is for another name
        ("verify-ca", True, True),
    ],
)
async def test_pretender(tmp_path, mode, is_ours, is_told):
    """Who we are is told to no server but one of the CA, and by verify-full of the name, asked for."""
    ours, theirs = (Authority.new(datetime.now(UTC)) for _ in range(2))
    (tmp_path / "ca.pem").write_bytes(ours.trusted)
    async with pretender(tmp_path, ours if is_ours else theirs) as (port, told):
        where = f"postgresql://fastrun:secret@localhost:{port}/fastrun"
        await refused(f"{where}?sslmode={mode}&sslrootcert={tmp_path / 'ca.pem'}")
    assert any(b"fastrun" in each for each in told) == is_told
