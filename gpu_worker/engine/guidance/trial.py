"""Finds out what a grammar does to the process that compiles it, in another process."""

import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import structlog

from gpu_worker.engine.guidance.trial_server import BEGUN, CPU_LIMIT, LIBRARY, OWN
from gpu_worker.engine.protocol import EngineError

log = structlog.get_logger(__name__)

_ATTEMPTS = 2
_ANSWER_S = 10.0
_END_S = 1.0  # its sockets are closed some time before it has ended


class Trial:
    """Tries grammars out in children of a process that is started now, and again if it dies.

    Its methods can be called from several threads.
    """

    def __init__(
        self, tokenizer: Path, *, size: int, eos_ids: Sequence[int], by_library: bool = False
    ) -> None:
        """Start the process, which takes some tenths of a second to be ready.

        Args:
            tokenizer: a tokenizer.json.
            size: how many logits the model has.
            eos_ids: the tokens that end a turn.
            by_library: the library reads the file, which then takes the first of these only.
        """
        module = "gpu_worker.engine.guidance.trial_server"
        numbers = [str(number) for number in (size, *eos_ids)]
        # As safe as the worker itself from modules in the working directory.
        safe = ["-P"] if sys.flags.safe_path else []
        reader = LIBRARY if by_library else OWN
        self._command = [sys.executable, *safe, "-m", module, reader, str(tokenizer), *numbers]
        self._lock = threading.Lock()
        self._closed = False
        self._start()

    def run(self, text: str, *, cpu_limit_s: float) -> int | None:
        """Compile a grammar elsewhere and find its first tokens.

        Whether the grammar is valid is not told: if not, that is found out without harm.

        Args:
            text: in the library's language.
            cpu_limit_s: seconds of processor time that it may take.

        Returns:
            The bytes of memory that the compiled grammar holds; None if compiling takes too much
            time or memory.

        Raises:
            EngineError: it could not be tried, or the machine is too busy to tell.
        """
        for _ in range(_ATTEMPTS):
            process = self._process
            answer = self._ask(text, cpu_limit_s)
            size = answer.removeprefix(BEGUN)
            if size:
                return int(size)
            if answer and process.poll() is None:
                return None
            self._replace(process)  # it was not for the grammar that the trial ended
        raise EngineError("grammars cannot be compiled on this worker now: try again")

    def close(self) -> None:
        """End the process and all that is tried; the second call does nothing."""
        with self._lock:
            self._closed = True
            self._stop()

    def _ask(self, text: str, cpu_limit_s: float) -> bytes:
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                try:
                    socket.send_fds(self._socket, [CPU_LIMIT.pack(cpu_limit_s)], [theirs.fileno()])
                except OSError:
                    return b""
            ours.settimeout(_ANSWER_S)
            try:
                return _exchange(ours, text.encode())
            except TimeoutError as error:
                raise EngineError("this worker is too busy to compile a grammar now") from error

    def _start(self) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - our own module
                self._command,
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # the library would quote the grammar
            )

    def _stop(self) -> None:
        self._socket.close()
        self._process.kill()
        self._process.wait()

    def _replace(self, process: subprocess.Popen[bytes]) -> None:
        """Start another process if this one ended, unless somebody did so already."""
        with self._lock:
            if self._closed or process is not self._process:
                return
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                return
            log.warning("grammar_trial_process_died", status=process.returncode)
            self._stop()
            self._start()


def _exchange(peer: socket.socket, request: bytes) -> bytes:
    """Send a request and return all that comes until the peer is closed or dies."""
    answer = b""
    try:
        peer.sendall(request)
        peer.shutdown(socket.SHUT_WR)
    except (BrokenPipeError, ConnectionResetError):
        pass  # it may have said something before it died
    try:
        while part := peer.recv(64):
            answer += part
    except ConnectionResetError:
        return answer
    return answer
