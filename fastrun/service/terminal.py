"""What may be written to a terminal: text of others must not move its cursor or forge lines."""


def printable(text: str) -> str:
    r"""Show every character that is not plainly visible as its escape, such as \x1b or \n."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def printable_lines(text: str) -> str:
    """The same for text whose own lines are to stay, such as a trace."""
    return "\n".join(map(printable, text.split("\n")))
