"""An edge as a process: it starts, says so, serves, drains on SIGTERM and ends; and its pages."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys

import httpx
import pytest
import yaml

from edge.app import Edge
from edge.config import Config
from edge.turns import Grant

CHAT = "/v1/chat/completions"


async def test_pages_without_a_key(start):
    """The front page, /healthz and /readyz need no key; /readyz is ok when all is connected."""
    async with start() as stack:
        stack.client.headers.pop("authorization")
        page = await stack.client.get("/")
        assert page.status_code == 200
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert "test/model" in page.text
        for path in ("/healthz", "/readyz"):
            response = await stack.client.get(path)
            assert (response.status_code, response.text) == (200, "ok\n")


async def test_reference(start):
    """The contract and its page need no key and nothing from elsewhere."""
    async with start() as stack:
        stack.client.headers.pop("authorization")
        document = await stack.client.get("/openapi.json")
        assert document.headers["content-type"] == "application/json"
        assert "/chat/completions" in document.json()["paths"]
        text = await stack.client.get("/openapi.yaml")
        assert text.headers["content-type"] == "application/yaml"
        assert yaml.safe_load(text.text) == document.json()
        page = await stack.client.get("/docs")
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        for path in ("/openapi.json", "/openapi.yaml", "/docs"):
            head = await stack.client.head(path)
            assert (head.status_code, head.content) == (200, b"")


async def test_metrics(start, body):
    """The admin port counts requests and tokens."""
    async with start() as stack:
        await stack.client.post(CHAT, json=body())
        async with httpx.AsyncClient() as client:
            page = (await client.get(f"http://127.0.0.1:{stack.admin_port}/metrics")).text
        assert (
            'fastrun_edge_requests_total{endpoint="chat",model="test/model",status="200"} 1.0'
            in page
        )
        assert 'fastrun_edge_tokens_total{kind="completion",model="test/model"} 4.0' in page
        assert "acc_1" not in page


async def test_admin_port_in_use(tmp_path):
    """An edge that cannot start has not listened to clients, who would have lost their answers."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config = Config(
            listen=f"127.0.0.1:{port}",
            admin_listen=f"127.0.0.1:{taken.getsockname()[1]}",
            auth_address="127.0.0.1:1",
            scheduler_addresses=["127.0.0.1:1"],
            spool=str(tmp_path),
        )
        edge = Edge(config)
        try:
            with pytest.raises(OSError, match="cannot listen on "):
                await edge.start()
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", port)
        finally:
            await edge.stop()


async def test_public_port_in_use(tmp_path):
    """An edge whose public port somebody has says which one it is, and what to do."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        edge = Edge(
            Config(
                listen=address,
                admin_listen="127.0.0.1:0",
                auth_address="127.0.0.1:1",
                scheduler_addresses=["127.0.0.1:1"],
                spool=str(tmp_path),
            )
        )
        try:
            with pytest.raises(
                OSError, match=f"cannot listen on {address}: stop what has the port"
            ):
                await edge.start()
        finally:
            await edge.stop()


async def test_drain(start, body, until):
    """A draining edge takes no new connection, lets what runs end, and closes its connections."""
    async with start() as stack:
        stack.worker.script = lambda run: run.delta("Once")
        async with stack.client.stream("POST", CHAT, json=body(stream=True)) as response:
            draining = asyncio.create_task(stack.edge.drain())
            await until(lambda: stack.edge._middleware.is_draining)
            assert not draining.done()
            stack.worker.runs[0].answer(" more")
            text = "".join([piece async for piece in response.aiter_text()])
        assert text.endswith("data: [DONE]\n\n")
        await asyncio.wait_for(draining, 5)
        try:
            async with httpx.AsyncClient() as other:
                await other.get(f"http://127.0.0.1:{stack.port}/healthz")
        except httpx.ConnectError:
            return
        raise AssertionError("a connection was taken")


async def test_an_edge_that_stops_blames_no_worker(start, body, until):
    """What it cuts off at the end of its grace, the worker frees by itself."""
    async with start() as stack:
        stack.worker.script = lambda run: run.delta("Once")
        stack.worker.answers_aborts = False
        asking = asyncio.create_task(stack.client.post(CHAT, json=body()))
        await until(lambda: stack.worker.runs)
        await stack.edge._runner.cleanup()
        await stack.edge._workers.close()
        stack.edge._scheduler.failed(Grant("l", b"", "w", "told last", "127.0.0.1:1"))
        await until(lambda: stack.scheduler.faults)
        assert stack.scheduler.losts == []
        assert stack.scheduler.releases == []
        with contextlib.suppress(httpx.HTTPError):
            await asking


async def test_process(start, body, until):
    """`python -m edge` serves, and on SIGTERM finishes a running stream and exits with 0."""
    async with start() as stack:
        environ = {
            **os.environ,
            "FASTRUN_EDGE_LISTEN": "127.0.0.1:0",
            "FASTRUN_EDGE_ADMIN_LISTEN": "127.0.0.1:0",
            "FASTRUN_EDGE_AUTH_ADDRESS": stack.edge._config.auth_address,
            "FASTRUN_EDGE_SCHEDULER_ADDRESSES": ",".join(stack.edge._config.scheduler_addresses),
        }
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "edge", env=environ, stderr=asyncio.subprocess.PIPE
        )
        try:
            ports = await _event(process, "service_started")
            await _event(process, "scheduler_leads")
            stack.worker.script = lambda run: run.delta("Once")
            url = f"http://127.0.0.1:{ports['http']}{CHAT}"
            request = stack.client.stream("POST", url, json=body(stream=True))
            async with request as response:
                assert response.status_code == 200
                process.send_signal(signal.SIGTERM)
                await _event(process, "service_draining")
                stack.worker.runs[0].answer(" more")
                text = "".join([piece async for piece in response.aiter_text()])
            assert text.endswith("data: [DONE]\n\n")
            finished = await _event(process, "request_finished")
            assert finished["completion_tokens"] == 2
            assert finished["request_id"] == stack.worker.runs[0].request.request_id
            assert await asyncio.wait_for(process.wait(), 10) == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            process._transport.close()


async def _event(process, name):
    """Read the log up to an event."""
    async with asyncio.timeout(20):
        while line := await process.stderr.readline():
            if line.startswith(b"{") and (event := json.loads(line))["event"] == name:
                return event
    raise AssertionError(f"no {name}")
