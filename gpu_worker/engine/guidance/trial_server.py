"""Tries grammars out for the worker, each in a process that may run out of time or memory.

Some grammars of a kilobyte keep the library busy for ever, at 90 MB a second, and it cannot be
interrupted. Run as ``python -m gpu_worker.engine.guidance.trial_server READER TOKENIZER SIZE
EOS_ID``, with several of the latter where READER is ``own``. Over stdin, which is a socket, the
worker hands it a socket for each grammar. This process reads the vocabulary once and forks for
every grammar, which takes a millisecond and leaves nothing behind.
It has one thread, so that it can fork, and compiles nothing itself, so that it always answers.
"""

import ctypes
import gc
import os
import resource
import signal
import socket
import struct
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from gpu_worker.engine.guidance.vocabulary import LibraryVocabulary, Vocabulary

CPU_LIMIT = struct.Struct("d")  # seconds, sent along with each socket
BEGUN = b"+"  # what comes after it shows what the grammar did; without it, it was never tried
WALL_LIMIT_S = 20.0  # longer than the worker waits, who then blames the machine
MEMORY_BYTES = 64 << 20  # what compiling may take at its worst moment
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


OWN, LIBRARY = "own", "library"  # who reads the tokenizer.json


def main(reader: str, tokenizer: Path, size: int, eos_ids: Sequence[int]) -> None:
    """Serve until the worker's end of the socket is closed, however that happens."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the worker answers them, and goes on for a while
    for number in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # leaves no zombies
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    vocabulary: Vocabulary | LibraryVocabulary
    if reader == LIBRARY:
        vocabulary = LibraryVocabulary.read(tokenizer, names={}, size=size, eos_id=eos_ids[0])
    else:
        vocabulary = Vocabulary.read(tokenizer, size=size, eos_ids=eos_ids)
    gc.freeze()  # so that the processes share its memory
    with socket.socket(fileno=0) as worker:
        _Server(worker, vocabulary).serve()


class _Server:
    """Forks for each grammar."""

    def __init__(self, worker: socket.socket, vocabulary: Vocabulary | LibraryVocabulary) -> None:
        self._worker = worker
        self._vocabulary = vocabulary
        self._id = os.getpid()
        # Found here and not in every child, for it takes longer than most grammars.
        self._prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None

    def serve(self) -> None:
        while True:
            message, descriptors, _, _ = socket.recv_fds(self._worker, CPU_LIMIT.size, 1)
            if not message:
                return
            for descriptor in descriptors:
                self._begin(descriptor, CPU_LIMIT.unpack(message)[0])

    def _begin(self, descriptor: int, cpu_limit_s: float) -> None:
        try:
            child = os.fork()
        except OSError:
            child = -1  # the worker finds its socket closed before anything began
        if child == 0:
            self._worker.close()
            self._try(descriptor, cpu_limit_s)
        os.close(descriptor)

    def _try(self, descriptor: int, cpu_limit_s: float) -> NoReturn:
        """Answer with the bytes that the grammar grew to, or die of it."""
        try:
            if self._prctl is not None:
                self._prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() == self._id:
                # The kernel ends the process: the library does not return to Python while it works.
                signal.setitimer(signal.ITIMER_PROF, cpu_limit_s)
                signal.setitimer(signal.ITIMER_REAL, WALL_LIMIT_S)
                with socket.socket(fileno=descriptor) as asker:
                    asker.sendall(BEGUN)
                    with asker.makefile("rb") as request:
                        text = request.read().decode()
                    asker.sendall(str(_growth(text, self._vocabulary)).encode())
        finally:
            os._exit(0)  # no answer is the answer that it failed


def _growth(text: str, vocabulary: Vocabulary | LibraryVocabulary) -> int:
    """Compile a grammar and find its first tokens; return the bytes of memory it then holds."""
    made = []

    def compile_it() -> None:
        matcher = vocabulary.matcher(text)
        matcher.compute_bitmask()
        made.append(matcher)

    before, data = _memory()
    if data:
        limit = data + vocabulary.stack_bytes + MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    threading.stack_size(vocabulary.stack_bytes)
    thread = threading.Thread(target=compile_it)
    thread.start()
    thread.join()
    return max(0, _memory()[0] - before)


def _memory() -> tuple[int, int]:
    """Return the bytes of its own that are in memory, and those that are reserved.

    Where there is no /proc, both are 0: memory is then limited by time alone.
    """
    try:
        fields = Path("/proc/self/statm").read_text(encoding="ascii").split()
    except FileNotFoundError:
        return 0, 0
    page = resource.getpagesize()
    return (int(fields[1]) - int(fields[2])) * page, int(fields[5]) * page


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), [int(number) for number in sys.argv[4:]])
