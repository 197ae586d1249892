"""The least that a gateway of aiohttp can be: it passes on what comes, and looks at nothing."""

import asyncio
import sys

import uvloop
from aiohttp import ClientSession, TCPConnector, web

CHUNK_BYTES = 1 << 16


async def serve(port: int, upstream: str) -> None:
    """Serve until cancelled.

    Args:
        port: on this machine.
        upstream: where to pass requests, such as `http://127.0.0.1:9000`.
    """
    async with ClientSession(connector=TCPConnector(limit=0)) as session:

        async def pass_on(request: web.Request) -> web.StreamResponse:
            async with session.request(
                request.method,
                upstream + request.path_qs,
                data=await request.read(),
                headers={"Content-Type": request.content_type},
            ) as answer:
                if answer.content_type != "text/event-stream":
                    body = await answer.read()
                    return web.Response(body=body, content_type=answer.content_type)
                response = web.StreamResponse(headers={"Content-Type": answer.content_type})
                await response.prepare(request)
                async for chunk in answer.content.iter_any():
                    await response.write(chunk)
                return response

        app = web.Application()
        app.router.add_route("*", "/{path:.*}", pass_on)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port, backlog=1024).start()
        await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), sys.argv[2]))
