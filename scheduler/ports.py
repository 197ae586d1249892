"""What decisions need from outside, so that tests can drive them: links, chance, a recorder."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from fastrun.v1.error_pb2 import ErrorReason
from fastrun.v1.scheduler_pb2 import EdgeReply, WorkerCommand

ItemT = TypeVar("ItemT", contravariant=True)  # noqa: PLC0105 - named for what it stands for


class Link(Protocol[ItemT]):
    """One session's way back to its peer; sessions of the same peer differ by identity."""

    @property
    def certificate(self) -> str:
        """The name in its peer's certificate; empty without TLS, where nobody can tell."""

    def send(self, item: ItemT) -> None:
        """Append to what the peer will be sent; never blocks."""

    def close(self) -> None:
        """End the session soon."""


EdgeLink = Link[EdgeReply]
WorkerLink = Link[WorkerCommand]


class Recorder(Protocol):
    """Wants to know of decisions, for the metrics."""

    def granted(self, model: str, waited_s: float) -> None:
        """A request got a slot after waiting here for so long."""

    def rejected(self, reason: ErrorReason.ValueType) -> None:
        """A request was refused."""

    def used(self, model: str, prompt_tokens: int, cached_tokens: int) -> None:
        """A generation that ran has ended; so many tokens of its prompt were cached."""

    def failing(self, model: str) -> None:
        """A worker has failed so many requests in a row that it is passed over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chance:
    """Where ids, keys, random numbers and the date come from."""

    new_id: Callable[[], str]
    new_key: Callable[[], bytes]
    random: Callable[[], float]
    """Uniform in [0, 1)."""
    wall_clock: Callable[[], float]
    """Seconds since 1970."""
