"""What a request did here, and when, as parts of its trace: told once, when it has ended."""

from fastrun.service.tracing import Tracer
from fastrun.v1.generation_pb2 import GenerateRequest
from gpu_worker.generation import Outcome

_FAULTS = frozenset({"engine_failed", "crashed"})


def tell(tracer: Tracer, request: GenerateRequest, outcome: Outcome, ended_at: float) -> None:
    """Tell how long it took in all, until its first token, and from there on.

    Args:
        tracer: who is told.
        request: which.
        outcome: what it came to.
        ended_at: monotonic seconds.
    """
    if not request.traceparent:
        return
    began_at = ended_at - outcome.duration_s
    whole = tracer.begin(request.traceparent, began_at)
    if outcome.prefill_s is not None:
        first_token_s, duration_s = outcome.first_token_s, outcome.duration_s
        prefill_end_s = duration_s if first_token_s is None else first_token_s
        prefill = tracer.begin(whole, began_at + outcome.prefill_s)
        tracer.end(prefill, "prefill", began_at + prefill_end_s, {})
        if first_token_s is not None:
            decode = tracer.begin(whole, began_at + first_token_s)
            tracer.end(decode, "decode", ended_at, {})
    usage = outcome.usage
    facts: dict[str, object] = {
        "request_id": request.request_id,
        "generation": request.generation,
        "end": outcome.end,
        "resumed_tokens": len(request.resume_token_ids),
    }
    if usage is not None:
        facts["prompt_tokens"] = usage.prompt_tokens
        facts["cached_tokens"] = usage.cached_tokens
        facts["completion_tokens"] = usage.completion_tokens
    tracer.end(whole, "generation", ended_at, facts, failed=outcome.end in _FAULTS)
