"""Errors."""


class RequestError(RuntimeError):
    """One request failed, and no other."""
