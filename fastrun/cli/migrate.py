"""`fastrun migrate`: brings the database's schema forward before the services start."""

import asyncio
import os

from auth_service import migrate as runner
from auth_service.config import Config
from auth_service.errors import AuthServiceError, StoreUnavailableError
from fastrun.cli.errors import CommandError
from fastrun.cli.group import group
from fastrun.cli.output import Json, print_json
from fastrun.service import config

app = group()


@app.command(epilog="Example: fastrun migrate")
def migrate(as_json: Json = False) -> None:
    """Apply what the database at DATABASE_URL lacks; safe at any time, also twice at once.

    It may be set in each of the places where the auth service looks.
    """
    try:
        url = config.load_one(Config, "auth", "database_url", os.environ)
    except config.ConfigError as error:
        raise CommandError(str(error)) from error
    if not url:
        raise CommandError(
            "DATABASE_URL is not set: say which database with "
            "DATABASE_URL=postgresql://user:password@host:port/database "
            "(fastrun up migrates its own by itself)"
        )
    try:
        applied = asyncio.run(runner.migrate(url))
    except StoreUnavailableError as error:
        raise CommandError(f"{error}: start it, or correct DATABASE_URL") from error
    except AuthServiceError as error:
        raise CommandError(str(error)) from error
    if as_json:
        print_json(applied)
    else:
        print("\n".join(f"applied {name}" for name in applied) or "nothing to apply")
