"""The services that the settings of this machine describe: each by what it needs."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from fastrun.cli.connection import Service
from fastrun.cli.doctor import certificates, disk, gpu, ports, protocol, services
from fastrun.cli.doctor.finding import Finding, ok, skipped, warning, wrong
from fastrun.cli.joined import WorkerFolder, default_folder, environment
from fastrun.local.environment import OWN
from fastrun.service import config as settings
from fastrun.service.config import ConfigError
from fastrun.service.identity import Role
from fastrun.service.tls import Tls, TlsError

SERVICES = {
    "edge": "edge",
    "auth": "auth_service",
    "scheduler": "scheduler",
    "worker": "gpu_worker",
}
START_POSTGRES = "start it, or correct DATABASE_URL"


class Described(NamedTuple):
    """A service of this machine."""

    role: Role
    config: Any
    environ: Mapping[str, str]


def described(environ: Mapping[str, str]) -> list[Role]:
    """Which services the settings describe: those that say what `fastrun up` says itself."""
    fields = {(service, field) for service, field in OWN if field != "plaintext"}
    return [
        Role(service)
        for service in SERVICES
        if any(
            settings.explicit(service, field, environ) for each, field in fields if each == service
        )
    ]


def with_joined(environ: Mapping[str, str]) -> Mapping[str, str]:
    """The settings of a machine that has joined a deployment: with those of its worker."""
    return of_joined(environ, default_folder(environ)) or environ


def of_joined(environ: Mapping[str, str], path: Path) -> Mapping[str, str]:
    """The same for a worker that is kept in a folder; none: no worker has joined from there."""
    folder = WorkerFolder(path)
    joined = folder.joined()
    return {} if joined is None else environment(folder.path, joined, environ)


def check(roles: list[Role], environ: Mapping[str, str], now: datetime) -> Iterator[Finding]:
    """Look at services one by one."""
    for role in roles:
        try:
            kind = import_module(f"{SERVICES[role]}.config").Config
            config = settings.load(kind, role, environ)
        except ConfigError as error:
            for problem in error.problems:
                yield wrong("settings", f"{role}: {problem}")
            continue
        yield from _service(Described(role, config, environ), now)


def _service(it: Described, now: datetime) -> Iterator[Finding]:
    yield from _ports(it)
    yield from _certificate(it, now)
    if it.role is Role.AUTH:
        yield from database(it.config.database_url, it.config.peppers, START_POSTGRES)
    elif it.role is Role.SCHEDULER and it.config.database_url:
        yield from database(it.config.database_url, (), START_POSTGRES)
    elif it.role is Role.EDGE:
        spool = Path(it.config.spool).expanduser()
        yield disk.check(spool, "the usage spool", "choose another folder by FASTRUN_EDGE_SPOOL")
    elif it.role is Role.WORKER:
        yield from worker(it.config, it.environ)
    yield from _peers(it)


def worker(config: Any, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Look at what a worker computes with."""
    try:
        # Needs what runs models, which the machines of other services have not.
        from fastrun.cli.doctor import model  # noqa: PLC0415 - see above

        config, found = model.check(config, environ)
        yield found
        if config.engine == "cpu":
            yield disk.check(
                model.cache(config), "converted models", "choose another by FASTRUN_WORKER_CACHE"
            )
    except ModuleNotFoundError as error:
        yield _missing(error)
    yield from gpu.check(needed=_gpus(config), visible=environ.get("CUDA_VISIBLE_DEVICES"))


def _gpus(config: Any) -> int:
    if config.engine != "tensorrt-llm":
        return 0
    return int(config.tensor_parallel * config.pipeline_parallel)


def database(url: str, peppers: Sequence[str], cure: str) -> Iterator[Finding]:
    """Look at a database: see postgres.check()."""
    try:
        # Needs the driver, which machines of workers have not.
        from fastrun.cli.doctor import postgres  # noqa: PLC0415 - see above

        yield from postgres.check(url, peppers, cure)
    except ModuleNotFoundError as error:
        yield _missing(error)


def _missing(error: ModuleNotFoundError) -> Finding:
    cure = "run pip install '.[local]' in fastrun's folder"
    return wrong("packages", f"{error.name} is missing: {cure}")


def _ports(it: Described) -> Iterator[Finding]:
    prefix = f"FASTRUN_{it.role.upper()}"
    found = ports.readiness(it.config.admin_listen)
    if found is None and _is_taken(it):
        yield warning(
            "settings",
            f"the worker here runs, and not with the admin port {it.config.admin_listen}: "
            f"set {prefix}_ADMIN_LISTEN as it was set for it",
        )
        return
    if found is None:
        yield skipped("service", f"the {services.called(it.role)} does not run here")
        for field in ("listen", "admin_listen", "enrol_listen"):
            if address := getattr(it.config, field, ""):
                yield ports.check(address, f"{prefix}_{field.upper()}")
        return
    if found.problem:
        yield wrong("service", f"the {services.called(it.role)} here is not ready: {found.problem}")
    else:
        yield ok("service", f"the {services.called(it.role)} here is ready")
    yield protocol.check(f"{services.called(it.role)} here", found.version)


def _is_taken(it: Described) -> bool:
    """Whether a process has the folder of a worker that has joined."""
    if it.role is not Role.WORKER or not it.config.renew_address:
        return False
    return WorkerFolder(Path(it.config.tls_cert).parent).is_taken()


def _certificate(it: Described, now: datetime) -> Iterator[Finding]:
    config = it.config
    if config.tls_cert:
        files = (Path(config.tls_cert), Path(config.tls_key), Path(config.tls_ca))
        cure = "make another one with fastrun certs, where the CA's key is"
        if it.role is Role.WORKER and config.renew_address:
            cure = "join again with fastrun worker join"
        yield certificates.of_files(
            f"the {services.called(it.role)}", it.role, files, cure=cure, now=now
        )


def _peers(it: Described) -> Iterator[Finding]:
    """Look at the services that this one calls."""
    try:
        tls = Tls.of(it.config)
    except TlsError:
        return  # it was told with the certificate
    peers: list[tuple[Role, str, Sequence[str]]] = []
    if it.role is Role.EDGE:
        peers.append((Role.AUTH, "AUTH_ADDRESS", [it.config.auth_address]))
    if it.role is Role.WORKER and it.config.renew_address:
        peers.append((Role.AUTH, "RENEW_ADDRESS", [it.config.renew_address]))
    if it.role in (Role.EDGE, Role.WORKER):
        peers.append((Role.SCHEDULER, "SCHEDULER_ADDRESSES", it.config.scheduler_addresses))
    for role, setting, addresses in peers:
        cure = f"start the {services.called(role)}, let us through its firewall, or correct "
        yield from services.check(
            [Service(address, role, tls) for address in addresses],
            f"{cure}FASTRUN_{it.role.upper()}_{setting}",
        )
