"""What an exception of TensorRT-LLM means: for its request, or for all of them."""

from gpu_worker.engine.grammar import GrammarError
from gpu_worker.engine.protocol import EngineDeadError, EngineError, UnsupportedError

# What generate_async() raises about what it was given, before anything reaches the engine.
CLIENT_ERRORS = (ValueError, TypeError, NotImplementedError)
LONGEST_REASON = 200

# Parts of messages about a request that no engine of this model can take.
_GUIDE = "guided decoding"
_TOO_LONG = (
    "max_num_tokens",
    "max_seq_len",
    "max_input_len",
    "default_max_tokens",
    "should not exceed",
    "longer than",
)

Fault = EngineError | GrammarError | UnsupportedError


def sort(error: BaseException, *, submitting: bool, request_error: type[BaseException]) -> Fault:
    """Return what an exception is to be told as.

    Whatever is not known to concern one request alone is the engine's death: a dead executor has
    many faces, and a worker that goes on with one answers nobody any more.

    Args:
        error: what was raised.
        submitting: by ``generate_async`` itself; else while its result was read.
        request_error: the library's class for errors of one request.
    """
    reason = _short(error)
    if isinstance(error, request_error):
        lowered = reason.lower()
        if _GUIDE in lowered:
            return GrammarError(f"the output cannot be held to this grammar: {reason}")
        if any(part in lowered for part in _TOO_LONG):
            return UnsupportedError(f"the engine refuses this request: {reason}")
        return EngineError(f"the engine failed this request: {reason}")
    if submitting and isinstance(error, CLIENT_ERRORS):
        return UnsupportedError(f"the engine refuses this request: {reason}")
    return EngineDeadError(f"the engine failed with {type(error).__name__}: {reason}")


def _short(error: BaseException) -> str:
    """Return the first line of a message, without what comes after it: traces quote a lot."""
    lines = str(error).strip().splitlines()
    line = lines[0] if lines else type(error).__name__
    return line if len(line) <= LONGEST_REASON else f"{line[:LONGEST_REASON]}…"
