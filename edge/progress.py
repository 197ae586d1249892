"""What has come of one generation so far, from whichever workers had it: what another needs."""

from array import array

from fastrun.v1.generation_pb2 import Accepted, Delta, Usage


class Progress:
    """Grows with each delta, and outlives the workers."""

    def __init__(self) -> None:
        self.has_begun = False
        """Its client may have seen a part."""
        self.resumable = False
        """Another worker can go on where this one stops."""
        # Four bytes each: as many as max_tokens may be held for every generation that runs.
        self.token_ids = array("I")
        """All that was received, while it is resumable."""
        self.prompt_tokens = 0
        """As the worker counts them that it began on."""
        self._cached_tokens = 0

    @property
    def can_resume(self) -> bool:
        """Whether it has begun, and another worker can go on."""
        return self.resumable and bool(self.token_ids)

    def accepted(self, accepted: Accepted) -> None:
        """A worker runs it."""
        self.resumable = accepted.resumable
        if not self.has_begun:
            self.prompt_tokens = accepted.prompt_tokens

    def received(self, delta: Delta) -> None:
        """More has come, and goes to the client."""
        if not self.has_begun:
            self.has_begun = True
            self._cached_tokens = delta.cached_tokens
        if self.resumable:
            self.token_ids.extend(delta.token_ids)

    def settle(self, usage: Usage) -> None:
        """See that a usage of what was resumed has the prompt as its first worker counted it.

        Its completion is that of the whole already.
        """
        usage.prompt_tokens = self.prompt_tokens
        usage.cached_tokens = self._cached_tokens

    def restart(self) -> None:
        """Forget what has come: it begins anew."""
        self.has_begun = self.resumable = False
        del self.token_ids[:]
