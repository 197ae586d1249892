"""All commands and what each is for; a command's module is imported only when it is called."""

from collections.abc import Mapping, Sequence
from importlib import import_module

import typer

from fastrun.cli.group import group

COMMANDS = {
    "up": "Start everything on this machine: Postgres, services, a model.",
    "down": "Stop what `fastrun up` has started.",
    "doctor": "Look for what is wrong, and say what to do about it.",
    "chat": "Talk to a model that is served.",
    "fleet": "Show workers, slots, caches and queues; or drain a worker.",
    "account": "Create, approve, suspend, close, limit and list accounts.",
    "key": "Issue, rotate, revoke, limit and list API keys.",
    "usage": "Show what accounts have used, and what it costs.",
    "price": "Set and list what models cost.",
    "audit": "Show who changed what.",
    "context": "Choose the deployment that commands are about.",
    "certs": "Make and renew the certificates of a deployment.",
    "worker": "Let a GPU server join a deployment, and run its worker.",
    "operator": "Let a person operate a deployment from elsewhere.",
    "model": "List, show, pull, add and forget models.",
    "bench": "Measure a running stack, or one part of fastrun.",
    "migrate": "Bring the database's schema forward.",
    "probe": "Ask a service whether it is ready, for health checks.",
    "version": "Show the version.",
}


# Set by what `fastrun --install-completion` has written for a shell: how it asks what may follow.
COMPLETE = "_FASTRUN_COMPLETE"
_TYPED = ("_TYPER_COMPLETE_ARGS", "COMP_WORDS")


def called(arguments: Sequence[str], environ: Mapping[str, str]) -> str | None:
    """Which command is called, or is being typed while a shell asks; None: none yet."""
    if COMPLETE in environ:
        typed = next((environ[name] for name in _TYPED if environ.get(name)), "")
        arguments = typed.split()[1:]
    return next((argument for argument in arguments if not argument.startswith("-")), None)


def make_app(called: str | None) -> typer.Typer:
    """Make the command line, whole for the command that is called and in outline for the rest."""
    app = group(
        help="An inference provider that anyone can run: the OpenAI API over open models.",
        epilog="Example: fastrun up",
        completion=True,
    )
    for name, summary in COMMANDS.items():
        if name == called:
            app.add_typer(import_module(f"fastrun.cli.{name}").app)
        else:
            app.command(name, help=summary)(_outline)
    return app


def _outline() -> None:
    raise AssertionError("a command that is called is never in outline")
