"""The admin port of a service: /metrics, /healthz and /readyz, on a thread of its own.

The standard library's server is enough here, and lets a GPU worker do without an HTTP framework.
It answers also when the event loop is stuck, which is just what /healthz is asked about.
"""

import errno
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import structlog
from prometheus_client import CollectorRegistry, Gauge, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

import fastrun
from fastrun.service.lifecycle import ListenError

log = structlog.get_logger()

# Somebody who asks for nothing must not keep a thread.
IDLE_S = 10.0
# Without a file for those who ask, they go on waiting, and the loop would find them at once again.
NO_FILES = (errno.EMFILE, errno.ENFILE)
NO_FILES_PAUSE_S = 0.5

Check = Callable[[], str | None]
"""Returns None when all is well, else one sentence that says what is not."""


def new_registry() -> CollectorRegistry:
    """Make the registry of a service, with what all of them tell: version and process."""
    registry = CollectorRegistry()
    build = Gauge("fastrun_build_info", "1, with the version.", ["version"], registry=registry)
    build.labels(fastrun.__version__).set(1)
    ProcessCollector(registry=registry)
    return registry


class _Server(ThreadingHTTPServer):
    """Sleeps until somebody asks, where the library's own loop looks up many times a second."""

    daemon_threads = True

    def __init__(self, host: str, port: int, handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), handler)

    def start(self) -> None:
        self.socket.settimeout(1)  # who asked may have gone again before it is accepted
        self._stopping, self._stop = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name="admin", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.close()
        self._thread.join()
        self._stopping.close()
        self.server_close()

    def get_request(self) -> tuple[socket.socket, object]:
        """Accept whoever asks; called by the library."""
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in NO_FILES:
                time.sleep(NO_FILES_PAUSE_S)
            raise

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002
        """Take what a handler raised, in whose place the library prints; called by the library."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):  # whoever asked has left, which is no news
            log.error("admin_request_failed", exc_info=error)

    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self.socket, selectors.EVENT_READ)
            selector.register(self._stopping, selectors.EVENT_READ)
            while self._stopping not in {key.fileobj for key, _ in selector.select()}:
                self.handle_request()


class AdminServer:
    """Serves one registry and two checks over HTTP until closed."""

    def __init__(self, registry: CollectorRegistry, *, alive: Check, ready: Check) -> None:
        self._registry = registry
        self._checks = {"/healthz": alive, "/readyz": ready}
        self._server: _Server | None = None

    def start(self, host: str, port: int) -> int:
        """Listen; port 0 takes a free one.

        Returns:
            The port.

        Raises:
            OSError: the port cannot be had.
        """
        try:
            server = _Server(host, port, self._handler())
        except OSError as error:
            address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            raise ListenError(address) from error
        self._server = server
        server.start()
        return int(server.server_address[1])

    def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.stop()
            self._server = None

    def answer(self, path: str) -> tuple[int, str, bytes]:
        """Return status, content type and body for a path."""
        if path == "/metrics":
            return 200, CONTENT_TYPE_LATEST, generate_latest(self._registry)
        check = self._checks.get(path)
        if check is None:
            return 404, "text/plain", b"try /metrics, /healthz or /readyz\n"
        problem = check()
        return (
            (503, "text/plain", f"{problem}\n".encode())
            if problem
            else (200, "text/plain", b"ok\n")
        )

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        answer, name = self.answer, f"fastrun/{fastrun.__version__}"

        class Handler(BaseHTTPRequestHandler):
            timeout = IDLE_S

            def do_GET(self) -> None:
                status, kind, body = answer(self.path.partition("?")[0])
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def version_string(self) -> str:
                return name

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
                """Scrapes are no news."""

        return Handler
