"""fastrun: an inference provider that anyone can run."""

from importlib.metadata import version

__version__ = version("fastrun")
