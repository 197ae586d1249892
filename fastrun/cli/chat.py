"""`fastrun chat`: a conversation with a model, or one question and its answer."""

import os
import sys
from contextlib import closing, suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from fastrun.cli import standard_files
from fastrun.cli.chat_api import ChatApi
from fastrun.cli.chat_screen import Screen
from fastrun.cli.connection import ContextName, context_of
from fastrun.cli.data import Data, data_folder
from fastrun.cli.errors import CommandError
from fastrun.cli.group import group
from fastrun.cli.output import Json, print_json
from fastrun.local.folder import DataFolder

app = group()

HELP = "Ctrl-C stops an answer, /new begins anew, Ctrl-D ends"
Messages = list[dict[str, str]]


@app.command(epilog='Example: fastrun chat "What is the capital of France?"')
def chat(
    question: Annotated[
        str | None,
        typer.Argument(
            help="Asked once, with what is piped in below it.  [a conversation at a terminal]"
        ),
    ] = None,
    base_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Ends in /v1.  [OPENAI_BASE_URL, or that of the stack here]"
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(help="An API key.  [that of the stack here; elsewhere OPENAI_API_KEY]"),
    ] = None,
    model: Annotated[
        str | None, typer.Option(envvar="OPENAI_MODEL", help="Which.  [the first that is served]")
    ] = None,
    system: Annotated[str, typer.Option(help="What the model is told before all else.")] = "",
    reasoning: Annotated[
        str | None, typer.Option(metavar="EFFORT", help="none, low, medium or high.")
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Of an answer.")] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0, max=2, help="0 always says the likeliest.")
    ] = None,
    data: Data = None,
    context: ContextName = None,
    as_json: Json = False,
) -> None:
    """Talk to a running stack; what a model thinks is shown dimmed, at a terminal."""
    api = _api(base_url, key, data, context)
    settings = {
        "reasoning_effort": reasoning,
        "max_tokens": max_tokens,
        "temperature": temperature,
    }
    options = {name: value for name, value in settings.items() if value is not None}
    options["model"] = model or _first_model(api)
    messages: Messages = [{"role": "system", "content": system}] if system else []
    asked = _asked(question)
    if asked is None:
        if as_json or not sys.stdin.isatty():
            raise CommandError("there is no question: give it, or pipe it in")
        _converse(api, messages, options)
        return
    messages.append({"role": "user", "content": asked})
    screen = Screen(None if as_json else sys.stdout)
    answer = screen.show(api.stream(messages, options))
    if as_json:
        print_json({"model": options["model"], **answer.fields()})


def _converse(api: ChatApi, messages: Messages, options: dict[str, Any]) -> None:
    """Read lines and show answers until the input ends."""
    with suppress(ImportError):
        import readline  # noqa: F401, PLC0415 - input() edits lines by it
    print(f"{options['model']} at {api.base_url}. {HELP}.")
    begin = list(messages)
    while (line := _line()) is not None:
        if line == "/new":
            messages[:] = begin
        elif line:
            _turn(api, messages, line, options)


def _line() -> str | None:
    """Read a line; Ctrl-C throws away what was typed. None: the input has ended."""
    try:
        return input("> ").strip()
    except KeyboardInterrupt:
        print()
        return ""
    except EOFError:
        print()
        return None


def _turn(api: ChatApi, messages: Messages, line: str, options: dict[str, Any]) -> None:
    """Ask and show; what was said before Ctrl-C stays in the conversation."""
    said = {"role": "user", "content": line}
    screen = Screen(sys.stdout)
    try:
        with closing(api.stream([*messages, said], options)) as pieces:
            screen.show(pieces)
    except KeyboardInterrupt:
        screen.stop()
    except CommandError as error:
        screen.stop()
        print(f"fastrun: {error}", file=sys.stderr)
        return
    messages += [said, {"role": "assistant", "content": screen.answer.content}]


def _asked(question: str | None) -> str | None:
    """What is asked once: the argument, what is piped in, or both."""
    piped = "" if sys.stdin.isatty() else standard_files.read_input().strip()
    return "\n\n".join(part for part in (question, piped) if part) or None


def _api(base_url: str | None, key: str | None, data: Path | None, context: str | None) -> ChatApi:
    """Find out where to ask, and as whom; what is typed goes before what is set for all."""
    if not (base_url or data or context):
        base_url = os.environ.get("OPENAI_BASE_URL")
    if not base_url:
        found = context_of(data, context)
        if found is None:
            return _local(data_folder(data), key)
        base_url = found.base_url
    if not base_url:
        raise CommandError("the context says no URL of the API: give --base-url and --key")
    if not (key := key or os.environ.get("OPENAI_API_KEY")):
        raise CommandError("an API key is needed: set OPENAI_API_KEY, or give --key")
    return ChatApi(base_url, key)


def _local(folder: DataFolder, key: str | None) -> ChatApi:
    state = folder.state()
    if state is None:
        raise CommandError(
            "nothing runs here: start it with fastrun up, or give --base-url and --key"
        )
    try:
        return ChatApi(state.base_url, key or folder.api_key.read_text().strip())
    except OSError as error:
        raise CommandError(
            f"cannot read {folder.api_key} ({error.strerror}): give a key with --key"
        ) from error


def _first_model(api: ChatApi) -> str:
    models = api.models()
    if not models:
        raise CommandError(f"no model is served at {api.base_url}: see fastrun fleet")
    return models[0]
