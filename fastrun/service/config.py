"""Settings of a service: environment and TOML become one frozen Struct, or every problem is named.

A field ``port`` of the service ``edge`` is read from, first wins:

1. ``FASTRUN_EDGE_PORT``, or the content of the file that ``FASTRUN_EDGE_PORT_FILE`` names;
2. ``port`` in table ``[edge]`` of the TOML file that ``FASTRUN_CONFIG`` names;
3. the field's default.

A field may have another environment name: ``Annotated[str, environment("DATABASE_URL")]``.
"""

import difflib
import sys
import tomllib
from collections.abc import Iterable, Mapping
from datetime import date
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec

T = TypeVar("T", bound=msgspec.Struct)

# Where a larger one is taken, it stands for another: 99999 for 34463.
_PORT = r":(\d{1,4}|[1-5]\d{4}|6[0-4]\d{3}|65[0-4]\d{2}|655[0-2]\d|6553[0-5])$"
Address = Annotated[str, msgspec.Meta(pattern=_PORT, description="host:port")]
AddressOrNone = Annotated[str, msgspec.Meta(pattern=f"^$|{_PORT}", description="host:port")]
_HOST = r"(\[[\w:.%]+\]|[^\[\]@/?#:,]*)(:\d*)?"
_DATABASE_URL = rf"postgres(ql)?://([^\[\]/?#]*@)?{_HOST}(,{_HOST})*([/?].*)?$"


def _database_url(pattern: str) -> msgspec.Meta:
    return msgspec.Meta(
        pattern=pattern,
        # What the driver says of another one quotes what may be the password.
        description="postgresql://user:password@host:port/database, with [ ] / ? # in a password "
        "as %5B %5D %2F %3F %23",
        extra={"environment": "DATABASE_URL"},
    )


DatabaseUrl = Annotated[str, _database_url(f"^{_DATABASE_URL}")]
DatabaseUrlOrNone = Annotated[str, _database_url(f"^$|^{_DATABASE_URL}")]
LogLevel = Literal["debug", "info", "warning", "error"]
MOST_S = 30 * 86_400
"""The longest time, in seconds: its milliseconds fit the messages between services, and none of
infinity would."""
MOST = (1 << 31) - 1
"""The largest count of something, for the same reason."""
MOST_BYTES = 1 << 53
Seconds = Annotated[float, msgspec.Meta(ge=0, le=MOST_S)]
SomeSeconds = Annotated[float, msgspec.Meta(gt=0, le=MOST_S)]
Count = Annotated[int, msgspec.Meta(ge=0, le=MOST)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=MOST)]
Bytes = Annotated[int, msgspec.Meta(ge=1, le=MOST_BYTES)]

# Whose tables the file may have: each service reads its own, and would not miss a misspelt one.
_TABLES = ("edge", "auth", "scheduler", "worker")
_PLAIN = {int: "a whole number", float: "a number", bool: "true or false", date: "a date"}
_BOUNDS = {"gt": "more than", "ge": "at least", "lt": "less than", "le": "at most"}


class ConfigError(Exception):
    """One line for each problem; ``problems`` holds them."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def environment(name: str) -> msgspec.Meta:
    """Name the environment variable of a field, in place of the derived one."""
    return msgspec.Meta(extra={"environment": name})


def host_and_port(address: str) -> tuple[str, int]:
    """Split ``host:port``; an IPv6 host is in brackets there, and without them in the result."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def load(kind: type[T], service: str, environ: Mapping[str, str]) -> T:
    """Read the settings of one service.

    Raises:
        ConfigError: with every problem, not only the first.
    """
    problems: list[str] = []
    table = _table(service, environ, problems)
    hints = get_type_hints(kind, include_extras=True)
    prefix = f"FASTRUN_{service.upper()}_"
    values: dict[str, Any] = {}
    known: set[str] = set()
    for field in msgspec.structs.fields(kind):
        hint = hints[field.name]
        name = _environment_name(hint) or f"{prefix}{field.name.upper()}"
        known.update((name, f"{name}_FILE"))
        found = _lookup(name, field.name, environ, table, problems)
        if found is not None:
            values |= _converted(field.name, hint, found, problems)
        elif field.required:
            problems.append(f"{name}: must be set")
    fields = {field.name for field in msgspec.structs.fields(kind)}
    problems += [_unknown(f"{service}.{key}", key, fields) for key in table if key not in fields]
    problems += [
        _unknown(name, name, known)
        for name in environ
        if name.startswith(prefix) and name not in known
    ]
    if problems:
        raise ConfigError(problems)
    try:
        return kind(**values)
    except ValueError as error:  # settings that do not fit together
        raise ConfigError([str(error)]) from error


def load_one(kind: type[T], service: str, field: str, environ: Mapping[str, str]) -> Any:
    """Read one setting, for a command that needs no other of its service.

    Returns:
        Its value; None: it is set nowhere and has no default.

    Raises:
        ConfigError: it cannot be read, or is wrong.
    """
    problems: list[str] = []
    hint = get_type_hints(kind, include_extras=True)[field]
    name = _environment_name(hint) or f"FASTRUN_{service.upper()}_{field.upper()}"
    found = _lookup(name, field, environ, _table(service, environ, problems), problems)
    values = {} if found is None else _converted(field, hint, found, problems)
    if problems:
        raise ConfigError(problems)
    defaults = {each.name: each.default for each in msgspec.structs.fields(kind)}
    default = defaults[field]
    return values.get(field, None if default is msgspec.NODEFAULT else default)


def explicit(
    service: str, field: str, environ: Mapping[str, str], *, name: str = ""
) -> tuple[str, Any] | None:
    """Find out whether somebody has set a field, for who starts services and sets some itself.

    Args:
        service: whose it is.
        field: which.
        environ: where it may be set, or the file be named in which it may.
        name: of its variable, where that is not the derived one.

    Returns:
        Where it is set, as people call the place, and its raw value; None: its default stands.
    """
    ignored: list[str] = []  # the service itself names all problems when it starts
    table = _table(service, environ, ignored)
    name = name or f"FASTRUN_{service.upper()}_{field.upper()}"
    return _lookup(name, field, environ, table, ignored)


def load_or_exit(kind: type[T], service: str, environ: Mapping[str, str]) -> T:
    """Read the settings, or print every problem to stderr and exit with status 2."""
    try:
        return load(kind, service, environ)
    except ConfigError as error:
        for problem in error.problems:
            print(f"{service}: {problem}", file=sys.stderr)  # noqa: T201 - logs need a config first
        raise SystemExit(2) from None


def _table(service: str, environ: Mapping[str, str], problems: list[str]) -> dict[str, Any]:
    path = environ.get("FASTRUN_CONFIG")
    if not path:
        return {}
    try:
        tables = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        problems.append(f"FASTRUN_CONFIG: {path}: {error.strerror}")
        return {}
    except UnicodeDecodeError:  # whose words quote it
        problems.append(f"FASTRUN_CONFIG: {path}: is not text in UTF-8")
        return {}
    except tomllib.TOMLDecodeError as error:
        problems.append(f"FASTRUN_CONFIG: {path}: {error}")
        return {}
    problems += [
        f"FASTRUN_CONFIG: {path}: [{name}] is no service" + _meant(name, _TABLES)
        for name in tables
        if name not in _TABLES
    ]
    table = tables.get(service, {})
    if not isinstance(table, dict):
        problems.append(f"FASTRUN_CONFIG: {path}: [{service}] must be a table")
        return {}
    return table


def _lookup(
    name: str,
    field: str,
    environ: Mapping[str, str],
    table: Mapping[str, Any],
    problems: list[str],
) -> tuple[str, Any] | None:
    if name in environ:
        return name, environ[name]
    if path := environ.get(f"{name}_FILE"):
        try:
            return f"{name}_FILE", Path(path).read_text().strip()
        except OSError as error:
            problems.append(f"{name}_FILE: {path}: {error.strerror}")
            return None
        except UnicodeDecodeError:  # whose words quote it
            problems.append(f"{name}_FILE: {path}: is not text in UTF-8")
            return None
    if field in table:
        return f"{field} in FASTRUN_CONFIG", table[field]
    return None


def _converted(
    field: str, hint: Any, found: tuple[str, Any], problems: list[str]
) -> dict[str, Any]:
    """Return a field with its value; nothing where that is wrong."""
    source, raw = found
    try:
        return {field: msgspec.convert(_split(raw, hint), hint, strict=False)}
    except msgspec.ValidationError:  # whose words are for programmers
        problems.append(f"{source}: must be {wanted(hint)}")
        return {}


def _environment_name(hint: Any) -> str | None:
    if get_origin(hint) is not Annotated:
        return None
    for meta in get_args(hint)[1:]:
        if isinstance(meta, msgspec.Meta) and meta.extra and "environment" in meta.extra:
            return str(meta.extra["environment"])
    return None


def wanted(hint: Any) -> str:
    """What a value has to be, in words; of a list, each of its parts."""
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(map(str, get_args(hint)))
    if get_origin(hint) in (list, tuple):
        return wanted(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(wanted(each) for each in get_args(hint) if each is not NoneType)
    if get_origin(hint) is not Annotated:
        return "a table" if msgspec.inspect.is_struct_type(hint) else _PLAIN.get(hint, "text")
    plain, *rest = get_args(hint)
    meta = [each for each in rest if isinstance(each, msgspec.Meta)]
    if described := next((each.description for each in meta if each.description), None):
        return described
    bounds = [
        f"{words} {bound:.16g}"
        for each in meta
        for name, words in _BOUNDS.items()
        if (bound := getattr(each, name)) is not None
    ]
    return " of ".join(filter(None, (wanted(plain), " and ".join(bounds))))


def _split(raw: Any, hint: Any) -> Any:
    """Turn a comma-separated string into a list where the field is one."""
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    if isinstance(raw, str) and get_origin(hint) in (list, tuple):
        return [part.strip() for part in raw.split(",") if part.strip()]
    return raw


def _unknown(shown: str, name: str, known: Iterable[str]) -> str:
    return f"{shown}: unknown setting" + _meant(name, known)


def _meant(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f", did you mean {close[0]}?" if close else ""
