"""Keeps a worker that has joined a worker: its certificate is renewed before it ends.

The key stays as it is, so there is no moment in which key and certificate do not fit, and an answer
that is lost is asked for again. fastrun.service.tls takes the new files by itself.
"""

from __future__ import annotations  # grpc's classes are generic in their stubs only

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import grpc.aio
import structlog

from fastrun.service import private_file, rpc
from fastrun.service.errors import ServiceError
from fastrun.service.identity import Role
from fastrun.v1.auth_pb2 import RenewRequest, RenewResponse
from fastrun.v1.auth_pb2_grpc import AuthServiceStub

if TYPE_CHECKING:
    from fastrun.service.tls import Tls
    from fastrun.v1.auth_pb2_grpc import AuthServiceAsyncStub

log = structlog.get_logger()

TIMEOUT_S = 10.0
# A certificate is renewed in the middle of its life: there is time.
FIRST_RETRY_S = 1.0
MOST_RETRY_S = 600.0


class Renewal:
    """Asks the auth service for what a worker needs to stay one.

    Args:
        address: host:port of the auth service.
        tls: our certificate.
        cert: the file it is in.
        ca: the file of the CAs that we trust.
    """

    def __init__(self, address: str, tls: Tls, *, cert: Path, ca: Path) -> None:
        self._address = address
        self._tls = tls
        self._cert = cert
        self._ca = ca

    async def run(self) -> None:
        """Renew whenever it is time, until cancelled."""
        retry_s = FIRST_RETRY_S
        while True:
            try:
                response = await self._ask()
                await asyncio.to_thread(self._keep, response)
            except grpc.aio.AioRpcError as error:
                reason = ServiceError.of_rpc(error).detail.message
            except OSError as error:
                reason = f"cannot write {error.filename}: {error.strerror}"
            else:
                retry_s = FIRST_RETRY_S
                await asyncio.sleep(max(1, response.again_in_s))
                continue
            log.warning("certificate_not_renewed", address=self._address, reason=reason)
            await asyncio.sleep(retry_s)
            retry_s = min(2 * retry_s, MOST_RETRY_S)

    async def _ask(self) -> RenewResponse:
        async with rpc.channel(self._address, Role.AUTH, self._tls) as channel:
            stub: AuthServiceAsyncStub = AuthServiceStub(channel)
            return await stub.Renew(RenewRequest(), timeout=TIMEOUT_S)

    def _keep(self, response: RenewResponse) -> None:
        # What we trust comes first: with a new CA, the new certificate is of it.
        _replace(self._ca, response.ca_pem)
        if response.cert_pem:
            _replace(self._cert, response.cert_pem)
            log.info("certificate_renewed", path=str(self._cert))


def _replace(path: Path, text: str) -> None:
    if path.read_text() != text:
        private_file.write(path, text.encode())
