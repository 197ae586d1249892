"""Whether Postgres is there, has our schema, and keeps keys that were made with our pepper."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

from auth_service import inspection
from auth_service.errors import (
    PepperError,
    RetiredPepperError,
    SchemaError,
    StoreUnavailableError,
)
from auth_service.inspection import Seen
from auth_service.keys import Peppers
from fastrun.cli.doctor import clock
from fastrun.cli.doctor.finding import Finding, ok, skipped, wrong


def check(url: str, peppers: Sequence[str], cure: str) -> Iterator[Finding]:
    """Look at a database.

    Args:
        url: where it is; its password is not shown.
        peppers: in hexadecimal, in the order in which they were used; none: not ours to know.
        cure: what to do when it cannot be reached.
    """
    before_s = time.time()
    try:
        secrets = Peppers.of(peppers) if peppers else None
        seen = asyncio.run(inspection.look(url, secrets))
    except StoreUnavailableError as error:
        reason = str(error).partition(": ")[2] or str(error)
        yield wrong("postgres", f"{_where(url)} cannot be reached ({reason}): {cure}")
        return
    except SchemaError as error:
        yield wrong("postgres", str(error))
        return
    except ValueError:
        yield wrong(
            "pepper", "the pepper is not 32 bytes or more in hexadecimal: set FASTRUN_AUTH_PEPPER"
        )
        return
    if seen.read_only:
        yield wrong(
            "postgres", f"{_where(url)} takes no writes: DATABASE_URL has to name the primary"
        )
    else:
        yield ok("postgres", f"{_where(url)} answers and has the schema of this version")
    yield _pepper(seen, given=bool(peppers))
    yield clock.compare("Postgres", seen.now, before_s=before_s, after_s=time.time())


def _pepper(seen: Seen, *, given: bool) -> Finding:
    if seen.pepper_fits is None:
        says = "no key is stored yet" if given else "only the auth service knows it"
        return skipped("pepper", says)
    if not seen.pepper_fits:
        return wrong("pepper", str(PepperError()))
    if seen.retired_keys:
        return wrong("pepper", str(RetiredPepperError(seen.retired_keys)))
    if seen.former_keys:
        return ok("pepper", f"fits; {seen.former_keys} keys that work are of former ones")
    return ok("pepper", "is that of all keys that work")


def _where(url: str) -> str:
    try:
        parts = urlsplit(url)
        return f"Postgres at {parts.hostname or 'localhost'}:{parts.port or 5432}"
    except ValueError:
        return "Postgres"
