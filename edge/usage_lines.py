"""What stands in the usage spool: a line for each thing that happens to a request's record. Pure.

A line is the CRC-32 of a JSON document, a space, the document and a newline, so that one that was
torn by a crash, or spoiled by a disk, is told from a whole one.
"""

from enum import StrEnum
from zlib import crc32

import msgspec

_DIGITS = 8
_HEAD = _DIGITS + 1


class Status(StrEnum):
    """How a request ended; fastrun/v1/auth.proto says what each means."""

    COMPLETED = "completed"
    CANCELLED = "cancelled"
    FAILED = "failed"
    PARTIAL = "partial"
    LOST = "lost"


class Ending(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is known of the end of a request."""

    status: Status
    finish: str = ""
    first_token_ms: int | None = None
    duration_ms: int | None = None


class Open(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="open"):
    """A request is about to be started on a worker; replaces what was said of it before."""

    request_id: str
    account_id: str
    key_id: str
    model: str
    started_at: float
    """Seconds since 1970."""
    choices: int = 1
    """How many generations each of its prompts has."""
    generations: tuple[int, ...] = ()
    """Indices of those that were started."""
    unsure: bool = False
    """A try that is over may have run, and whoever is asked about the last one cannot tell."""
    ending: Ending | None = None
    """It is over, and whether it ran and what it used is to be asked."""


class Started(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="started"):
    """A further generation of an open request is about to be started, or one is tried again."""

    request_id: str
    generation: int
    unsure: bool = False
    """See Open."""


class Counts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Tokens; None: nobody knows."""

    prompt: int | None = None
    cached: int | None = None
    completion: int | None = None
    reasoning: int | None = None


class Closed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="closed"):
    """The record of a request, which stands for itself: the lines before it may be gone."""

    request_id: str
    account_id: str
    key_id: str
    model: str
    started_at: float
    ending: Ending
    worker_id: str = ""
    counts: Counts = Counts()


class Void(msgspec.Struct, frozen=True, kw_only=True, tag="void"):
    """No worker accepted the request: it leaves no record."""

    request_id: str


Line = Open | Started | Closed | Void

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)


def encode(line: Line) -> bytes:
    """Write a line, its newline included."""
    document = _encoder.encode(line)
    return b"%08x %b\n" % (crc32(document), document)


def decode(line: bytes) -> Line | None:
    """Read a line, given without its newline; None: it is torn or spoiled."""
    document = line[_HEAD:]
    if line[:_HEAD] != b"%08x " % crc32(document):
        return None
    try:
        return _decoder.decode(document)
    except msgspec.MsgspecError:  # of another version
        return None


def started(request: Open, line: Started) -> Open:
    """Add to an open request what a further start says."""
    return msgspec.structs.replace(
        request,
        generations=tuple(sorted({*request.generations, line.generation})),
        unsure=request.unsure or line.unsure,
    )


class Ledger:
    """What a row of lines comes to."""

    def __init__(self) -> None:
        self.open: dict[str, Open] = {}
        """Requests whose end was not seen."""

    def take(self, line: Line) -> Closed | None:
        """Take the next line; returns a record that is complete with it."""
        known = self.open.pop(line.request_id, None)
        if isinstance(line, Open):
            self.open[line.request_id] = line
        elif isinstance(line, Started) and known is not None:
            self.open[line.request_id] = started(known, line)
        return line if isinstance(line, Closed) else None
