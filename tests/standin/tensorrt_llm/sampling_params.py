"""What a request asks for; checked as the library does, and no better."""

from tensorrt_llm._contract import record

GuidedDecodingParams = record("GuidedDecodingParams")


def _validate(self):
    self.best_of = self.best_of or self.n
    if self.top_p is not None and not 0 <= self.top_p <= 1:
        raise ValueError(f"require 0 <= top_p <= 1, got {self.top_p}")
    if self.top_k is not None and self.top_k < 0:
        raise ValueError(f"require top_k >= 0, got {self.top_k}")
    if self.temperature is not None and self.temperature < 0:
        raise ValueError(f"require temperature >= 0, got {self.temperature}")
    if self.repetition_penalty is not None and self.repetition_penalty <= 0:
        raise ValueError("require repetition_penalty > 0")
    if self.best_of < self.n:
        raise ValueError("best_of cannot be less than n")
    if self.best_of > 1 and is_greedy(self) and not self.use_beam_search:
        raise ValueError("Greedy decoding in the LLM API does not allow multiple returns")
    guide = self.guided_decoding
    if guide is not None:
        guides = (guide.json, guide.regex, guide.grammar, guide.json_object, guide.structural_tag)
        if sum(map(bool, guides)) > 1:
            raise ValueError("Only one guide can be used for a request")


def is_greedy(params):
    """Whether the likeliest token is taken: also where nothing is said."""
    silent = params.temperature is None and params.top_p is None and params.top_k is None
    return silent or params.top_k == 1 or params.top_p == 0 or params.temperature == 0


SamplingParams = record("SamplingParams", __post_init__=_validate)
