"""How a request is sampled, in TensorRT-LLM's words."""

import math

import msgspec
import pytest

from gpu_worker.engine.protocol import SamplingParams, UnsupportedError
from gpu_worker.engine.tensorrt_llm import contract
from gpu_worker.engine.tensorrt_llm.features import of_version
from gpu_worker.engine.tensorrt_llm.sampling import check, keywords

NEW = of_version(contract.read()["target"], ["prompt_ignore_length"])
OLD = of_version("1.2.1", [])
HALF = msgspec.structs.replace(NEW, prompt_ignored=False)


def chosen(features=NEW, prompt_tokens=7, resumed=0, **fields):
    sampling = SamplingParams(**{"max_tokens": 5, **fields})
    return keywords(sampling, features, prompt_tokens=prompt_tokens, resumed=resumed, guide=None)


def test_nothing_is_left_to_the_librarys_defaults():
    """Its defaults are greedy, 32 tokens, and text: each is said otherwise."""
    said = chosen()
    assert (said["temperature"], said["top_p"], said["top_k"], said["min_p"]) == (1.0, 1.0, 0, 0.0)
    assert (said["max_tokens"], said["n"], said["best_of"]) == (5, 1, 1)
    assert (said["detokenize"], said["add_special_tokens"]) == (False, False)
    assert said["repetition_penalty"] == 1.0


@pytest.mark.parametrize("greedy", [{"temperature": 0}, {"top_p": 0}, {"top_k": 1}])
def test_greedy_is_said_in_one_way(greedy):
    """A top_p of 0 is refused by some versions, and all of these mean the same."""
    said = chosen(**{"temperature": 0.7, "min_p": 0.2, **greedy})
    assert (said["temperature"], said["top_p"], said["top_k"], said["min_p"]) == (0.0, 1.0, 0, 0.0)


def test_all_ends_are_named():
    """A model has several end tokens, of which the library knows one; all are kept in the output."""
    said = chosen(stop_token_ids=(2, 106, 1))
    assert (said["end_id"], said["stop_token_ids"], said["ignore_eos"]) == (2, [106, 1], False)
    assert said["include_stop_str_in_output"]
    said = chosen()
    assert (said["end_id"], said["stop_token_ids"], said["ignore_eos"]) == (None, None, True)


@pytest.mark.parametrize(
    ("features", "asked", "said"),
    [(NEW, None, None), (NEW, 0, 0), (NEW, 5, 5), (OLD, None, None), (OLD, 0, 1), (OLD, 5, 5)],
)
def test_logprobs_of_the_sampled_token_come_with_every_version(features, asked, said):
    """Older versions report nothing for 0."""
    assert chosen(features, logprobs=asked)["logprobs"] == said


def test_penalties_count_what_was_generated():
    """The prompt does not count, and what was generated before a resumption does."""
    assert chosen(prompt_tokens=7)["prompt_ignore_length"] == 7
    assert "prompt_ignore_length" not in chosen(OLD)
    assert chosen(repetition_penalty=0)["repetition_penalty"] == 1.0


def test_a_continuation_has_random_numbers_of_its_own():
    """It must not repeat those of its beginning, and is the same each time."""
    assert chosen(seed=5)["seed"] == 5
    assert chosen(seed=5, resumed=3)["seed"] == chosen(seed=5, resumed=3)["seed"]
    seeds = {chosen(seed=5, resumed=resumed)["seed"] for resumed in range(20)}
    assert len(seeds) == 20
    assert all(0 <= seed < 1 << 63 for seed in seeds)


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": 0},
        {"temperature": 2.1},
        {"temperature": math.nan},
        {"top_p": -0.1},
        {"top_p": 1.1},
        {"top_k": -1},
        {"min_p": math.nan},
        {"logprobs": 21},
        {"repetition_penalty": -1.0},
        {"repetition_penalty": math.nan},
    ],
)
def test_deadly_values_never_reach_the_engine(fields):
    """Some of these have brought it down."""
    with pytest.raises(UnsupportedError, match=next(iter(fields))):
        check(SamplingParams(**{"max_tokens": 5, **fields}), NEW)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("frequency_penalty", 0.5),
        ("presence_penalty", -1.0),
        ("repetition_penalty", 1.2),
        ("min_p", 0.1),
    ],
)
def test_what_a_version_ignores_is_refused(name, value):
    """A parameter that would be dropped without a word is a 400 that names it."""
    sampling = SamplingParams(max_tokens=5, **{name: value})
    check(sampling, NEW)
    with pytest.raises(UnsupportedError, match=rf"^{name} .* 1\.2\.1"):
        check(sampling, OLD)
    check(SamplingParams(max_tokens=5, repetition_penalty=0.0), OLD)


def test_penalties_that_would_count_the_prompt_are_refused():
    """With penalties but no way to leave out the prompt, only the one that counts it is taken."""
    check(SamplingParams(max_tokens=5, repetition_penalty=1.2), HALF)
    with pytest.raises(UnsupportedError, match="frequency_penalty"):
        check(SamplingParams(max_tokens=5, frequency_penalty=1.2), HALF)
