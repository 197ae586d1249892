"""Which environment the services and the command of `fastrun up --exec` get; pure."""

import os
from collections.abc import Mapping

from fastrun.local.errors import LocalError
from fastrun.local.folder import State
from fastrun.service import config

LOOPBACK = "127.0.0.1"
_DIRECT = (LOOPBACK, "localhost")
_PORT = "use --port to choose the public one"
_STACK = "the parts of its stack find each other"
_CERTS = "it makes the certificates of its stack"
# What would lead a command of `--exec` to another stack.
_OTHER_STACKS = ("FASTRUN_CONTEXT", "FASTRUN_CLI_AUTH_ADDRESS", "FASTRUN_CLI_SCHEDULER_ADDRESS")
# By these Postgres' libraries are told of a database. With PGSSLMODE=require, ours was refused.
_POSTGRES = "PG"
# What makes separate services one stack is not for others to set; all else is. Each with its why.
OWN = {
    ("edge", "listen"): _PORT,
    ("edge", "admin_listen"): "it takes a free port",
    ("edge", "reuse_port"): "use --edges for several edges on one port",
    ("edge", "auth_address"): _STACK,
    ("edge", "scheduler_addresses"): _STACK,
    ("edge", "spool"): "usage belongs to the database beside it",
    ("auth", "listen"): "it takes a free port",
    ("auth", "admin_listen"): "it takes a free port",
    ("scheduler", "listen"): "it takes a free port",
    ("scheduler", "admin_listen"): "it takes a free port",
    ("worker", "listen"): "it takes a free port",
    ("worker", "admin_listen"): "it takes a free port",
    ("worker", "scheduler_addresses"): _STACK,
    **{
        (service, field): _CERTS
        for service in ("edge", "auth", "scheduler", "worker")
        for field in ("tls_cert", "tls_key", "tls_ca", "plaintext")
    },
}


def check_own(environ: Mapping[str, str]) -> None:
    """Make sure that nobody asks for what `fastrun up` would not heed.

    Raises:
        LocalError: one of OWN is set.
    """
    for (service, field), why in OWN.items():
        if found := config.explicit(service, field, environ):
            where, _ = found
            raise LocalError(f"fastrun up sets {where} itself ({why}): leave it unset")


def of_service(
    environ: Mapping[str, str],
    service: str,
    settings: Mapping[str, object],
    *,
    port: int = 0,
) -> dict[str, str]:
    """The environment of one service.

    Args:
        environ: our own; what it sets for the service stands: see check_own().
        service: as its settings are named, such as `edge`.
        settings: by field name; a list becomes comma-separated, None is left out.
        port: where the others look for it; 0 takes a free one. Nobody is told its admin port: that
            is a free one each time, so that whoever has taken it meanwhile is in nobody's way.
    """
    prefix = f"FASTRUN_{service.upper()}_"
    listen = {
        "listen": f"{LOOPBACK}:{port}",
        "admin_listen": f"{LOOPBACK}:0",
    }
    ours = {
        f"{prefix}{name.upper()}": _text(value)
        for name, value in {**listen, **settings}.items()
        if value is not None
    }
    return {**environ, **ours}


def database_url(environ: Mapping[str, str]) -> str | None:
    """Where the database is that the stack has to take; None: it has its own."""
    _, url = config.explicit("auth", "database_url", environ, name="DATABASE_URL") or ("", None)
    return str(url) if url else None


def with_database(environ: Mapping[str, str], url: str, *, own: bool) -> dict[str, str]:
    """The environment of what speaks to the database.

    Args:
        environ: our own.
        url: where the database is.
        own: it is the stack's, so that what is set for others, such as PGOPTIONS, is not for it.
    """
    for_it = {
        name: value for name, value in environ.items() if not (own and name.startswith(_POSTGRES))
    }
    return {**for_it, "DATABASE_URL": url}


def of_command(
    environ: Mapping[str, str], state: State, api_key: str, *, data: str, scripts: str
) -> dict[str, str]:
    """The environment of a command that talks to this stack, and to no other by mistake.

    Args:
        environ: our own.
        state: the stack.
        api_key: the development key.
        data: the stack's data folder, by which `fastrun` commands find it.
        scripts: the folder of our own programs, which goes first on PATH.
    """
    ours = {
        "OPENAI_BASE_URL": state.base_url,
        "OPENAI_API_KEY": api_key,
        "OPENAI_MODEL": state.model,
        "FASTRUN_DATA": data,
        "PATH": os.pathsep.join(part for part in (scripts, environ.get("PATH", "")) if part),
    }
    for name in ("NO_PROXY", "no_proxy"):
        hosts = [host for host in environ.get(name, "").split(",") if host.strip()]
        ours[name] = ",".join([*hosts, *(host for host in _DIRECT if host not in hosts)])
    others = {name: value for name, value in environ.items() if name not in _OTHER_STACKS}
    return {**others, **ours}


def _text(value: object) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
