"""The stack of `fastrun up` on this machine, whether it runs or not."""

import http.client
from collections.abc import Iterator, Mapping
from datetime import datetime
from importlib import import_module
from urllib.parse import urlsplit

from fastrun.cli.connection import auth_service, scheduler_service
from fastrun.cli.doctor import certificates, deployment, disk, host
from fastrun.cli.doctor.finding import Finding, ok, skipped, warning, wrong
from fastrun.local import preflight
from fastrun.local.certificates import folder_name, identities_in
from fastrun.local.environment import check_own, database_url
from fastrun.local.errors import LocalError
from fastrun.local.folder import DataFolder, State
from fastrun.local.postgres import Postgres
from fastrun.service import config as settings
from fastrun.service.config import ConfigError
from gpu_worker.config import Config

RENEW = "start fastrun up again, which makes it anew"
TIMEOUT_S = 5.0
# What a start makes by itself, unless it is told.
_MADE = {
    ("auth", "database_url"): ("DATABASE_URL", "postgresql://"),
    ("auth", "pepper"): ("FASTRUN_AUTH_PEPPER", "00" * 32),
}


def check(
    folder: DataFolder, environ: Mapping[str, str], *, port: int, now: datetime
) -> Iterator[Finding]:
    """Look at a stack.

    Args:
        folder: its data.
        environ: what `fastrun up` would be started with.
        port: the public one that it would have.
        now: in UTC.
    """
    yield disk.check(folder.path, "data", "choose another folder with --data")
    for identity in identities_in(folder.certs):
        place = folder.certs / folder_name(identity)
        files = (place / "cert.pem", place / "key.pem", place / "ca.pem")
        yield certificates.of_files(str(identity), identity.role, files, cure=RENEW, now=now)
    state = folder.state()
    if state is not None:
        yield from _running(folder, state, environ)
    elif (pid := folder.holder()) is not None:
        yield warning("stack", f"it is starting or stopping (process {pid}): ask again in a moment")
    else:
        yield skipped("stack", f"nothing runs in {folder.path}: start it with fastrun up")
        yield from _startable(environ, port)


def _running(folder: DataFolder, state: State, environ: Mapping[str, str]) -> Iterator[Finding]:
    yield _ready(state.base_url)
    url = database_url(environ) or Postgres(folder.postgres).found_dsn()
    if url is None:
        yield wrong("postgres", f"its Postgres does not run: see {folder.postgres / 'log'}")
    else:
        yield from host.database(url, _peppers(folder, environ), f"see {folder.postgres / 'log'}")
    auth = auth_service(None, folder.path, None)
    yield from deployment.check(auth, scheduler_service(None, folder.path, None))


def _ready(base_url: str) -> Finding:
    address = urlsplit(base_url).netloc
    connection = http.client.HTTPConnection(address, timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        text = answer.read(1 << 10).decode(errors="replace").strip()
    except (OSError, http.client.HTTPException):
        return wrong("service", f"the edge at {address} does not answer: see its log")
    finally:
        connection.close()
    if answer.status != http.HTTPStatus.OK:
        return wrong("service", f"the edge at {address} is not ready: {text}")
    return ok("service", f"the edge at {address} is ready")


def _peppers(folder: DataFolder, environ: Mapping[str, str]) -> list[str]:
    """Return all of them, in the order in which they were used; none: they cannot be read."""
    _, previous = settings.explicit("auth", "previous_peppers", environ) or ("", [])
    if isinstance(previous, str):
        previous = [each.strip() for each in previous.split(",") if each.strip()]
    if found := settings.explicit("auth", "pepper", environ):
        return [*previous, str(found[1])]
    try:
        return [*previous, (folder.path / "pepper").read_text().strip()]
    except OSError:
        return []


def _startable(environ: Mapping[str, str], port: int) -> Iterator[Finding]:
    """Look at what a start would need."""
    try:
        preflight.check_machine()
        preflight.check_packages()
        yield ok("packages", "all that fastrun up needs is installed")
    except LocalError as error:
        yield wrong("packages", str(error))
    try:
        preflight.check_loopback()
        preflight.check_port(port)
        yield ok("port", f"{port} is free")
    except LocalError as error:
        yield wrong("port", str(error))
    if url := database_url(environ):
        yield from host.database(url, (), host.START_POSTGRES)
    yield from _settings(environ)
    try:
        yield from host.worker(settings.load(Config, "worker", environ), environ)
    except ConfigError as error:
        for problem in error.problems:
            yield wrong("settings", problem)


def _settings(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Look at what is set for services; the worker's settings are looked at with its model."""
    try:
        check_own(environ)
    except LocalError as error:
        yield wrong("settings", str(error))
    made = {
        name: value
        for field, (name, value) in _MADE.items()
        if settings.explicit(*field, environ, name=name) is None
    }
    for service, package in host.SERVICES.items():
        if service == "worker":
            continue
        kind = import_module(f"{package}.config").Config
        try:
            settings.load(kind, service, {**environ, **made})
        except ConfigError as error:
            for problem in error.problems:
                yield wrong("settings", problem)
