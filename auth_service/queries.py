"""All SQL of the service, each statement with a name and a sentence."""

from fastrun.service import queries


def load() -> dict[str, str]:
    """The statements of auth_service by name."""
    return queries.load("auth_service")
