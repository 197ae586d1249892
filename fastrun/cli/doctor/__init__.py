"""`fastrun doctor`: looks at all that may be wrong here, and says what to do about it."""

from fastrun.cli.doctor.command import app

__all__ = ["app"]
