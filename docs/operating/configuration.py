"""Writes configuration.md from the settings of the services: run it after a change of a Config."""  # noqa: INP001 - a script

import ast
import inspect
from collections.abc import Iterator
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from fastrun.service import config

PAGE = Path(__file__).with_suffix(".md")
SERVICES = {
    "edge": "edge",
    "auth": "auth_service",
    "scheduler": "scheduler",
    "worker": "gpu_worker",
}

# Bounds that mind nobody.
_ANYWAY = (config.MOST_S, config.MOST, config.MOST_BYTES)

HEAD = """\
# Settings

Made by `docs/operating/configuration.py` from the `config.py` of each service. Change those.

A setting is read from these places, and the first that has it wins:

1. the environment variable in the tables below;
2. the file that a variable of the same name with `_FILE` added names, for secrets;
3. the TOML file that `FASTRUN_CONFIG` names:
   a table for each service (`[edge]`, `[auth]`, `[scheduler]`, `[worker]`),
   with the setting's name in lower case and without its prefix, such as `queue_timeout_s`;
4. the default.

Lists are separated by commas in variables, and are arrays in TOML.
Names that end in `_s` are seconds, 30 days at most, in `_bytes` bytes.

A service that finds a wrong value or an unknown name says so, for all of them at once,
and exits with status 2.

Commands that use a setting of a service look in the same places:
`fastrun migrate`, `model`, `doctor` and `up`.
`fastrun up` passes its own environment on to the services,
and refuses those settings that it must decide itself, such as addresses, ports and certificates.
"""


class Setting(msgspec.Struct, frozen=True):
    """One line of a table."""

    variable: str
    default: str
    meaning: str
    section: str


def settings(module: str, prefix: str) -> Iterator[Setting]:
    """Read the settings of a service in the order in which its Config has them."""
    kind = import_module(f"{module}.config").Config
    hints = get_type_hints(kind, include_extras=True)
    defaults = {field.name: _default(field) for field in msgspec.structs.fields(kind)}
    section = ""
    for name, meaning, comment in _texts_of_all(kind):
        section = comment or section
        meta = _meta(hints[name])
        extra = next((m.extra for m in meta if m.extra), None) or {}
        variable = extra.get("environment", f"{prefix}{name.upper()}")
        yield Setting(
            variable, defaults[name], f"{meaning} {_bounds(hints[name], meta)}".strip(), section
        )


def render() -> str:
    """Return the whole page."""
    parts = [HEAD]
    for service, module in SERVICES.items():
        parts.append(f"\n## {module}: `[{service}]`\n")
        section = None
        for setting in settings(module, f"FASTRUN_{service.upper()}_"):
            if setting.section != section:
                section = setting.section
                parts.append(f"\n{section}\n" if section else "")
                parts.append("\n| variable | default | |\n|---|---|---|\n")
            parts.append(f"| `{setting.variable}` | {setting.default} | {setting.meaning} |\n")
    return "".join(parts)


def _texts_of_all(kind: type) -> Iterator[tuple[str, str, str]]:
    """Yield the texts of a Config's own fields, then of those that all services have."""
    for each in kind.__mro__:
        if each is msgspec.Struct:
            return
        yield from _texts(each)


def _texts(kind: type) -> Iterator[tuple[str, str, str]]:
    """Yield each field, what it means, and the heading that begins with it, if one does.

    A field's docstring below it says what it means, and a comment above it is a heading; without a
    docstring the comment says what the field means.
    """
    source = inspect.getsource(kind)
    lines = source.splitlines()
    body = ast.parse(source).body[0].body  # type: ignore[attr-defined] # it is a class
    for field, following in zip(body, [*body[1:], None], strict=True):
        if not isinstance(field, ast.AnnAssign):
            continue
        above = takewhile(lambda line: line.startswith("#"), _before(lines, field.lineno))
        comment = _line(" ".join(reversed([line.removeprefix("#") for line in above])))
        name = ast.unparse(field.target)
        if isinstance(following, ast.Expr):
            yield name, _line(ast.literal_eval(following.value)), comment
        else:
            yield name, comment, ""


def _before(lines: list[str], number: int) -> Iterator[str]:
    return (line.strip() for line in reversed(lines[: number - 1]))


def _line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "**required**"
    value = field.default
    if field.default_factory is not msgspec.NODEFAULT:
        value = field.default_factory()
    return _shown(value)


def _shown(value: Any) -> str:
    if value in ("", None) or value == []:
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, list | tuple):
        return f"`{','.join(map(str, value))}`"
    if isinstance(value, float) and value.is_integer():
        return f"`{int(value)}`"
    return f"`{value}`"


def _meta(hint: Any) -> list[msgspec.Meta]:
    found = [each for each in get_args(hint)[1:] if isinstance(each, msgspec.Meta)]
    return found if get_origin(hint) is Annotated else []


def _bounds(hint: Any, meta: list[msgspec.Meta]) -> str:
    """Say in words what values are taken, where it is not plain from the meaning."""
    plain = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    if get_origin(plain) is Literal:
        return "One of " + ", ".join(f"`{value}`" for value in get_args(plain)) + "."
    words = {"gt": "more than", "ge": "at least", "lt": "less than", "le": "at most"}
    bounds = [
        f"{word} {value:g}"
        for each in meta
        for name, word in words.items()
        if (value := getattr(each, name)) is not None and value not in _ANYWAY
    ]
    shown = [bound for bound in bounds if bound not in ("more than 0", "at least 0", "at least 1")]
    return f"{' and '.join(shown).capitalize()}." if shown else ""


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
