"""How each command, or group of commands, of `fastrun` is made."""

import typer


def group(name: str | None = None, *, help: str | None = None) -> typer.Typer:  # noqa: A002 - typer's name
    """An app in the same manner as all others.

    Args:
        name: of a group; a single command needs none.
        help: what a group is for.
    """
    return typer.Typer(
        name=name,
        help=help,
        no_args_is_help=help is not None,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
