"""The executor's errors and results."""


class CppExecutorError(RuntimeError):
    """The native executor failed."""
