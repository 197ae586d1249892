"""From our SamplingParams to the keywords of TensorRT-LLM's, and what is refused instead."""

from hashlib import blake2b
from typing import Any

from gpu_worker.engine.protocol import SamplingParams, UnsupportedError
from gpu_worker.engine.tensorrt_llm.features import MIN_P_SINCE, PENALTIES_SINCE, Features

# OpenAI's ranges; the library checks none of them, and some values have brought engines down.
MAX_TEMPERATURE = 2.0
MAX_LOGPROBS = 20
SEEDS = 1 << 63  # the library's is unsigned


def check(sampling: SamplingParams, features: Features) -> None:
    """Refuse what the installed version would ignore without a word, or die of.

    Raises:
        UnsupportedError: with the parameter's name.
    """
    if sampling.max_tokens < 1:
        raise UnsupportedError("max_tokens must be at least 1")
    for name, value, most in (
        ("temperature", sampling.temperature, MAX_TEMPERATURE),
        ("top_p", sampling.top_p, 1.0),
        ("min_p", sampling.min_p, 1.0),
        ("logprobs", sampling.logprobs or 0, MAX_LOGPROBS),
    ):
        if not 0 <= value <= most:  # written so that NaN is refused
            raise UnsupportedError(f"{name} must be between 0 and {most}")
    if sampling.top_k < 0:
        raise UnsupportedError("top_k must be at least 0")
    if not sampling.repetition_penalty >= 0:
        raise UnsupportedError("repetition_penalty must be at least 0")
    if sampling.min_p != 0 and not features.min_p:
        raise _lacking("min_p", features, since=MIN_P_SINCE)
    if not features.penalties:
        _check_no_penalties(sampling, features)
    elif not features.prompt_ignored:
        _check_no_counting_penalties(sampling, features)


def _check_no_penalties(sampling: SamplingParams, features: Features) -> None:
    if _repetition_penalty(sampling) != 1:
        raise _lacking("repetition_penalty", features, since=PENALTIES_SINCE)
    _check_no_counting_penalties(sampling, features)


def _check_no_counting_penalties(sampling: SamplingParams, features: Features) -> None:
    for name in ("frequency_penalty", "presence_penalty"):
        if getattr(sampling, name) != 0:
            raise _lacking(name, features, since=PENALTIES_SINCE)


def _lacking(name: str, features: Features, *, since: str) -> UnsupportedError:
    return UnsupportedError(
        f"{name} is not supported by the engine of this model (TensorRT-LLM {features.version}, "
        f"and it needs {since}): leave it out"
    )


def is_greedy(sampling: SamplingParams) -> bool:
    """Tell whether the likeliest token is always taken."""
    return sampling.temperature == 0 or sampling.top_p == 0 or sampling.top_k == 1


def keywords(
    sampling: SamplingParams, features: Features, *, prompt_tokens: int, resumed: int, guide: Any
) -> dict[str, Any]:
    """Return the keywords of TensorRT-LLM's SamplingParams: all that matter, none left to defaults.

    Args:
        sampling: checked.
        features: of the installed version.
        prompt_tokens: how many tokens are the request's own prompt.
        resumed: how many tokens after those were generated before, elsewhere.
        guide: a GuidedDecodingParams, or None.
    """
    stops = list(sampling.stop_token_ids)
    greedy = is_greedy(sampling)
    chosen: dict[str, Any] = {
        "n": 1,  # each generation is a request of its own
        "best_of": 1,
        "use_beam_search": False,
        "max_tokens": sampling.max_tokens,
        # Without one of these three the library takes the likeliest token. 0 for top_p is refused
        # by some versions and taken for greedy by others.
        "temperature": 0.0 if greedy else sampling.temperature,
        "top_p": 1.0 if greedy else sampling.top_p,
        "top_k": 0 if greedy else sampling.top_k,
        "min_p": 0.0 if greedy else sampling.min_p,
        "seed": _seed(sampling.seed, resumed),
        "repetition_penalty": _repetition_penalty(sampling),
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        # The tokenizer names one end only; models have several. Without any, nothing may end it.
        "end_id": stops[0] if stops else None,
        "pad_id": stops[0] if stops else None,
        "stop_token_ids": stops[1:] or None,
        "ignore_eos": not stops,
        "include_stop_str_in_output": True,  # else the last token is cut off again
        "logprobs": _logprobs(sampling, features),
        "prompt_logprobs": None,
        "guided_decoding": guide,
        "detokenize": False,
        "add_special_tokens": False,
        "skip_special_tokens": False,
        "exclude_input_from_output": True,
        "return_perf_metrics": False,
    }
    if features.prompt_ignored:
        # What was generated before counts as generated, also when it comes as prompt.
        chosen["prompt_ignore_length"] = prompt_tokens
    return chosen


def _repetition_penalty(sampling: SamplingParams) -> float:
    """Return the penalty; the library refuses 0, which is off."""
    return sampling.repetition_penalty or 1.0


def _logprobs(sampling: SamplingParams, features: Features) -> int | None:
    if sampling.logprobs is None:
        return None
    return max(sampling.logprobs, features.least_logprobs)


def _seed(seed: int, resumed: int) -> int:
    """Return a seed, another one for a continuation.

    The library begins a request's random numbers at its own first token, so that a continuation
    is as good as the one that was lost, but not the same; nor should it repeat its beginning.
    """
    if not resumed:
        return seed % SEEDS
    digest = blake2b(b"%d %d" % (seed, resumed), digest_size=8).digest()
    return int.from_bytes(digest, "little") % SEEDS
