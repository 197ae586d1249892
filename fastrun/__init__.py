"""fastrun: an inference provider that anyone can run."""


def __getattr__(name: str) -> str:
    """Look the version up when it is asked for: that takes longer than most commands' start."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import version  # noqa: PLC0415 - slow

    return version("fastrun")
