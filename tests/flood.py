"""Sends requests with unknown keys at once, each on a connection of its own that is open already.

`python flood.py HOST:PORT COUNT` says `connected`, waits for a line, and prints the statuses.
"""

import asyncio
import json
import sys
from collections import Counter
from random import Random

from fastrun.service import api_key


async def connected(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = address.rsplit(":", 1)
    return await asyncio.open_connection(host, int(port))


async def status(reader: asyncio.StreamReader) -> str:
    return (await reader.readline()).split()[1].decode()


async def main(address: str, count: int) -> None:
    random = Random()
    open_ = [await connected(address) for _ in range(count)]
    requests = [
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Authorization: Bearer %b\r\nContent-Length: 2\r\n\r\n{}"
        % api_key.generate(random).encode()
        for _ in range(count)
    ]
    print("connected", flush=True)
    sys.stdin.readline()
    for (_, writer), request in zip(open_, requests, strict=True):
        writer.write(request)
    statuses = await asyncio.gather(*(status(reader) for reader, _ in open_))
    print(json.dumps(Counter(statuses)))


asyncio.run(main(sys.argv[1], int(sys.argv[2])))
