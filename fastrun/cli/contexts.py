"""Contexts: where a deployment is, and the certificate that makes us one of its operators."""

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated

import msgspec

from fastrun.cli.errors import CommandError
from fastrun.service import private_file
from fastrun.service.tls import Pem

LOCAL = "local"
"""No file: the stack that `fastrun up` runs here."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_CURRENT = "current-context"

Url = Annotated[str, msgspec.Meta(pattern=r"^(https?://[^'\"\\\s]+)?$")]
Address = Annotated[str, msgspec.Meta(pattern=r"^[^'\"\\\s]+:\d+$")]


class Context(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A deployment as one operator reaches it; raises ValueError when it is not whole."""

    auth: Address
    """host:port of the auth service."""
    scheduler: Address
    """host:port of the scheduler, or of several, separated by commas."""
    operator: str = ""
    """Who its certificate says that we are."""
    expires: datetime | None = None
    """When its certificate ends."""
    plaintext: bool = False
    """The deployment does without certificates."""
    base_url: Url = ""
    """Where its API is, ending in /v1; empty: that is not told."""
    cert: str = ""
    key: str = ""
    ca: str = ""

    def __post_init__(self) -> None:
        if self.plaintext == bool(self.cert and self.key and self.ca):
            raise ValueError("it needs cert, key and ca, or plaintext = true in their place")

    @property
    def tls(self) -> Pem | None:
        """What its services are called with; None: plaintext."""
        if self.plaintext:
            return None
        return Pem(self.cert.encode(), self.key.encode(), self.ca.encode())


class Contexts:
    """The contexts of this user, and which of them commands are about unless told otherwise.

    Args:
        folder: where they are kept; need not be there.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def names(self) -> list[str]:
        """All that there are."""
        return sorted(path.stem for path in self._folder.glob("contexts/*.toml"))

    def read(self, name: str) -> Context:
        """Read one.

        Args:
            name: its name, or the path of a context's file: what has a slash or ends in .toml.

        Raises:
            CommandError: there is none, or it cannot be used.
        """
        if os.sep in name or name.endswith(".toml"):
            path = Path(name).expanduser()
        else:
            path = self._known(name)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise CommandError(f"cannot read the context {path}: {error}") from error
        return parse(text, str(path))

    def add(self, name: str, text: str, *, replace: bool = False) -> Context:
        """Keep a context.

        Raises:
            CommandError: its name or text is none, or there is one of this name.
        """
        if not _NAME.fullmatch(name) or name == LOCAL or name.endswith(".toml"):
            raise CommandError(
                f"{name!r} cannot be a context's name: use letters, digits, dots, - and _, "
                f"and not {LOCAL}"
            )
        context = parse(text, "the context")
        if name in self.names() and not replace:
            raise CommandError(f"there is a context {name}: add it with --replace, or remove it")
        with _writing(self._folder):
            private_file.write(self._path(name), text.encode())
        return context

    def remove(self, name: str) -> None:
        """Forget a context.

        Raises:
            CommandError: there is none.
        """
        path = self._known(name)
        with _writing(self._folder):
            if self.current() == name:
                self.use(LOCAL)
            path.unlink()

    def use(self, name: str) -> None:
        """Make a context the one that commands are about unless told otherwise.

        Raises:
            CommandError: there is none.
        """
        with _writing(self._folder):
            if name == LOCAL:
                (self._folder / _CURRENT).unlink(missing_ok=True)
                return
            self._known(name)
            private_file.write(self._folder / _CURRENT, f"{name}\n".encode())

    def current(self) -> str:
        """The one that commands are about unless told otherwise."""
        try:
            return (self._folder / _CURRENT).read_text(encoding="utf-8").strip() or LOCAL
        except FileNotFoundError:
            return LOCAL

    def _known(self, name: str) -> Path:
        if name not in self.names():
            known = ", ".join((LOCAL, *self.names()))
            raise CommandError(f"there is no context {name!r}: use one of {known}")
        return self._path(name)

    def _path(self, name: str) -> Path:
        return self._folder / "contexts" / f"{name}.toml"


def default_folder(environ: Mapping[str, str]) -> Path:
    """Where a user's settings are kept."""
    config = Path(environ.get("XDG_CONFIG_HOME", ""))
    return (config if config.is_absolute() else Path.home() / ".config") / "fastrun"


def parse(text: str, what: str) -> Context:
    """Read a context's text.

    Raises:
        CommandError: it is none; ``what`` says where it stands.
    """
    try:
        return msgspec.convert(tomllib.loads(text), Context)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, ValueError) as error:
        raise CommandError(f"{what} cannot be used: {error}") from error


def render(context: Context) -> str:
    """Write a context's text; its values are our own and hold no quotes."""
    lines = [f'{name} = "{getattr(context, name)}"' for name in ("auth", "scheduler", "operator")]
    if context.base_url:
        lines.append(f'base_url = "{context.base_url}"')
    if context.expires is not None:
        lines.append(f"expires = {context.expires.isoformat(timespec='seconds')}")
    lines += [f"{name} = '''\n{getattr(context, name)}'''" for name in ("cert", "key", "ca")]
    return "\n".join(lines) + "\n"


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CommandError(f"cannot keep contexts in {folder}: {error.strerror}") from error
