"""What makes a worker the better choice, in tokens of prompt to process."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """How much each thing costs; `fastrun bench placement` shows what other figures would do."""

    prefill: float = 4.0
    """Each token of the prompt that is not cached, in an idle fleet; as many times as much as there
    are slots for each free one. It keeps this request waiting, as backlog does, and all that come
    after it: what is computed twice is taken from the whole fleet, and one that is nearly full tips
    over by it."""
    backlog: float = 1.0
    """Each token of other prompts that the worker has yet to process, which go before this one:
    the unit of all the others."""
    context: float = 0.01
    """Each token that running requests hold: each step reads all of them."""
    occupancy: float = 512.0
    """A worker with all its slots held but one, beside an idle one: each running request makes
    each step longer, the steps of this prompt too."""
    kv_pressure: float = 8192.0
    """A worker without memory for contexts: it puts aside what it runs, to compute it again."""
    kv_free_enough: float = 0.2
    """With so much of that memory free, as a share, it costs nothing yet."""
    tie_tokens: float = 64.0
    """Workers that differ by no more than this are equals: estimates are not better than that."""
    least_loaded: int = 4
    """How many of the least loaded are compared."""
    holders: int = 6
    """How many that hold a beginning of the prompt are compared."""
    at_random: int = 2
    """How many others: the order is a second old at times, and not all should go by it."""
