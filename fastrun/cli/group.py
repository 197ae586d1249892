"""How each command, or group of commands, of `fastrun` is made."""

import typer


def group(
    name: str | None = None,
    *,
    help: str | None = None,  # noqa: A002 - typer's name
    epilog: str | None = None,
    completion: bool = False,
) -> typer.Typer:
    """An app in the same manner as all others.

    Args:
        name: of a group; a single command needs none.
        help: what a group is for.
        epilog: an example of it.
        completion: it completes what is typed in a shell; the outermost does so for all.
    """
    return typer.Typer(
        name=name,
        help=help,
        epilog=epilog,
        no_args_is_help=help is not None,
        add_completion=completion,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
