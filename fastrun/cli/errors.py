"""How a command fails."""


class CommandError(Exception):
    """A command cannot do what it was asked; the message is one sentence that says what to do."""


class NotReachedError(CommandError):
    """Nothing answers where a service should."""
