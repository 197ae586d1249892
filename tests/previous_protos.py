"""The protos of the previous minor version, and a wire that carries nothing newer.

A new service that talks to an old one hears no field that the old one does not know, and is not
heard with its own. Between two services of today a Wire has that effect: it takes each message
apart by the previous descriptors, drops what they do not know, and passes the rest on.
"""

from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

FILE = Path(__file__).parent / "contract" / "protos-0.1.binpb"


class Method(NamedTuple):
    """One call of a service."""

    path: str
    request: type
    response: type
    client_streams: bool
    server_streams: bool


class PreviousProtos:
    """What the previous version's services could say, as classes of their own.

    Args:
        files: the descriptors; by default those that are kept.
    """

    def __init__(self, files: descriptor_pb2.FileDescriptorSet | None = None) -> None:
        self.files = files or descriptor_pb2.FileDescriptorSet.FromString(FILE.read_bytes())
        self._pool = descriptor_pool.DescriptorPool()
        for file in self.files.file:  # each after those that it imports
            self._pool.Add(file)
        self.methods = {method.path: method for method in self._methods()}

    def message(self, name: str) -> type:
        """The class of a message of fastrun.v1, such as ``Acquire``."""
        return self._class(self._pool.FindMessageTypeByName(f"fastrun.v1.{name}"))

    def reduced(self, kind: type, sent: bytes) -> bytes:
        """What is left of a message when all is dropped that the previous version did not know."""
        message = kind.FromString(sent)
        message.DiscardUnknownFields()
        return message.SerializeToString()

    def _methods(self):
        for file in self.files.file:
            for name in (service.name for service in file.service):
                service = self._pool.FindServiceByName(f"{file.package}.{name}")
                for method in service.methods:
                    yield Method(
                        f"/{service.full_name}/{method.name}",
                        self._class(method.input_type),
                        self._class(method.output_type),
                        method.client_streaming,
                        method.server_streaming,
                    )

    @staticmethod
    def _class(descriptor) -> type:
        return message_factory.GetMessageClass(descriptor)


class Wire(grpc.GenericRpcHandler):
    """Passes the calls of the previous version on to a service."""

    def __init__(self, protos: PreviousProtos) -> None:
        self._protos = protos
        self._target: grpc.aio.Channel | None = None
        self.carried: set[str] = set()
        """The names of the calls that came."""

    def leads_to(self, address: str) -> None:
        """Say where the service is, host:port, before the first call."""
        options = [("grpc.enable_http_proxy", 0)]
        self._target = grpc.aio.insecure_channel(address, options=options)

    def service(self, handler_call_details):
        """See grpc; a call that the previous version lacks is unimplemented."""
        method = self._protos.methods.get(handler_call_details.method)
        if method is None or self._target is None:
            return None
        self.carried.add(method.path.rpartition("/")[2])
        # On the wire a call with one message is a stream of one.
        return grpc.stream_stream_rpc_method_handler(self._passing(method))

    def _passing(self, method: Method):
        async def passed(requests, context):
            call = self._target.stream_stream(
                method.path,
                lambda sent: self._protos.reduced(method.request, sent),
                lambda sent: self._protos.reduced(method.response, sent),
            )(requests, timeout=context.time_remaining(), metadata=context.invocation_metadata())
            try:
                async for response in call:
                    await context.write(response)
            except grpc.aio.AioRpcError as error:
                context.set_trailing_metadata(tuple(error.trailing_metadata() or ()))
                await context.abort(error.code(), error.details() or "")
            finally:
                call.cancel()

        return passed

    async def close(self) -> None:
        """End all calls."""
        if self._target is not None:
            await self._target.close()


@asynccontextmanager
async def wire(protos: PreviousProtos):
    """Yield a wire and the address, host:port, at which it takes calls."""
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    between = Wire(protos)
    server.add_generic_rpc_handlers((between,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield between, f"127.0.0.1:{port}"
    finally:
        await server.stop(0)
        await between.close()
