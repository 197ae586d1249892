"""One try of a generation."""

import pytest

from edge.attempt import Attempt
from edge.metering import Tally
from edge.progress import Progress
from edge.retries import AttemptError
from fastrun.v1.generation_pb2 import Accepted, Delta


class Shown:
    """An output that keeps what it was told."""

    def __init__(self):
        self.told = []

    def begin(self, index):
        """Nothing is shown early."""

    def on_delta(self, index, delta):
        self.told.append(delta.content)


def begin(shown, progress):
    tally = Tally(0, "w", lambda: None)
    return Attempt(0, shown, tally, progress, early_headers_s=60, first_delta_s=60, silence_s=60)


async def test_what_comes_too_late_changes_nothing():
    """A worker that was given up accepts at last, while another one is half through."""
    shown, progress = Shown(), Progress()
    silent = begin(shown, progress)
    silent.on_silence()
    with pytest.raises(AttemptError):
        silent.ended.result()
    silent.close()
    other = begin(shown, progress)
    other.on_accepted(Accepted(prompt_tokens=9, resumable=False))
    other.on_delta(Delta(content="one", token_ids=[1]))
    silent.on_accepted(Accepted(prompt_tokens=5, resumable=True))
    silent.on_delta(Delta(content="late", token_ids=[7]))
    other.on_delta(Delta(content="two", token_ids=[2]))
    other.close()
    assert shown.told == ["one", "two"]
    assert (progress.prompt_tokens, progress.can_resume) == (9, False)
