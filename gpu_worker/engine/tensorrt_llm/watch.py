"""Whether the engine lives and makes progress, looked at from a thread of its own.

A dead executor does not tell those who wait for it, and can block the event loop that would ask. So
this thread asks, and it alone has to be alive for a dead worker to end.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

# The attribute is read as often as this; it costs nothing.
LOOK_S = 0.5
CHECK_INTERVAL_S = 2.0
CHECK_LIMIT_S = 30.0


class Progress:
    """When the engine last did anything for those who wait.

    Written by the event loop and read by the watching thread: each value is replaced as a whole.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._in_flight = 0
        self._moved_at = clock()
        self.patience_s = 0.0
        """How much longer than usual the engine may take now."""

    def began(self) -> None:
        """Note that the engine was given a request."""
        if self._in_flight == 0:
            self._moved_at = self._clock()
        self._in_flight += 1

    def ended(self) -> None:
        """Note that the engine has let one go."""
        self._in_flight -= 1
        self._moved_at = self._clock()

    def moved(self) -> None:
        """Note a token, or a step of the engine."""
        self._moved_at = self._clock()

    @property
    def idle_s(self) -> float:
        """How long nothing has come although something is awaited, for longer than was allowed."""
        idle_s = self._clock() - self._moved_at if self._in_flight else 0.0
        return max(0.0, idle_s - self.patience_s)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How long what may take, in seconds."""

    stalled_s: float = 60.0
    look_s: float = LOOK_S
    check_interval_s: float = CHECK_INTERVAL_S
    check_s: float = CHECK_LIMIT_S
    # After it, the slot of an aborted request is free though the engine has not confirmed.
    abort_s: float = 5.0
    # From death to the end of the process, whatever hangs: what runs is told in the meantime.
    last_words_s: float = 4.5


class Watch:
    """Looks at the engine until it dies, and tells that once."""

    def __init__(
        self,
        llm: Any,
        progress: Progress,
        *,
        limits: Limits,
        on_death: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start the thread.

        Args:
            llm: a ``tensorrt_llm.LLM``.
            progress: what the event loop saw of it.
            limits: how long what may take.
            on_death: called from the thread, at most once, with the reason.
            clock: monotonic seconds.
        """
        self._llm = llm
        self._progress = progress
        self._limits = limits
        self._on_death = on_death
        self._clock = clock
        self._closed = threading.Event()
        self._check: _Check | None = None
        self._checked_at = clock()
        threading.Thread(target=self._run, name="engine-watch", daemon=True).start()

    def close(self) -> None:
        """Look no more."""
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.wait(self._limits.look_s):
            if (reason := self._death()) is not None:
                if not self._closed.is_set():
                    self._on_death(reason)
                return

    def _death(self) -> str | None:
        if (error := fatal_error(self._llm)) is not None:
            return f"its executor reports {type(error).__name__}"
        if (idle_s := self._progress.idle_s) > self._limits.stalled_s:
            return f"nothing has come of its requests for {idle_s:.0f} s"
        return self._unhealthy()

    def _unhealthy(self) -> str | None:
        """Ask the library, in a thread that may never come back."""
        now = self._clock()
        if self._check is None:
            if now - self._checked_at >= self._limits.check_interval_s:
                self._check = _Check(self._llm, began_at=now)
            return None
        if self._check.is_running:
            if now - self._check.began_at > self._limits.check_s:
                return f"its health check has not ended for {self._limits.check_s:.0f} s"
            return None
        problem = self._check.problem
        self._check, self._checked_at = None, now
        return problem


class _Check:
    """One call of the library's health check."""

    def __init__(self, llm: Any, *, began_at: float) -> None:
        self.began_at = began_at
        self.problem: str | None = None
        self._llm = llm
        self._thread = threading.Thread(target=self._run, name="engine-check", daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            if not self._llm._check_health():  # noqa: SLF001 - what its own servers call
                self.problem = "its health check fails"
        except Exception as error:  # noqa: BLE001 - whatever it raises, it is not well
            self.problem = f"its health check raises {type(error).__name__}"


def fatal_error(llm: Any) -> BaseException | None:
    """Return what the executor has died of, if it says so."""
    error = getattr(getattr(llm, "_executor", None), "_fatal_error", None)
    return error if isinstance(error, BaseException) else None
