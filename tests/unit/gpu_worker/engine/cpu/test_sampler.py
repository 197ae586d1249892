"""How tokens are chosen: exact over the whole vocabulary, and by seed and position alone."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from gpu_worker.engine.cpu.sampler import (
    RowSampler,
    draw,
    largest,
    logprobs,
    nucleus,
    pick,
    sample,
    uniform,
)
from gpu_worker.engine.grammar import GrammarError
from gpu_worker.engine.protocol import SamplingParams

VOCABULARY = 5000
PROMPT = np.array([1, 2, 2, 3], np.int64)


def params(**fields):
    return SamplingParams(max_tokens=10, **fields)


def logits(seed=0, size=VOCABULARY):
    return np.random.default_rng(seed).normal(0, 3, size).astype(np.float32)


def softmax(values):
    weights = np.exp(values.astype(np.float64) - values.max())
    return weights / weights.sum()


def possible(values, sampling, draws=400):
    """Which tokens come out of many evenly spread draws."""
    return {draw(values, sampling, at / draws) for at in range(draws)}


@pytest.mark.parametrize(
    "fields",
    [{"temperature": 0}, {"top_p": 0}, {"top_k": 1}, {"temperature": 1e-30}, {"top_p": 1e-9}],
)
def test_greedy(fields):
    """Temperature 0, top_p 0 and top_k 1 all give the likeliest token."""
    values = logits()
    row = RowSampler(params(**fields), PROMPT)
    assert [(int(values.argmax()), None)] == sample(values[None], [row])


def test_draws_follow_the_distribution_over_the_whole_vocabulary():
    """Without cut-offs each token owns a share of the draws that is its probability."""
    values = np.zeros(VOCABULARY, np.float32)
    values[VOCABULARY - 1] = math.log(VOCABULARY)
    draws = [draw(values, params(), at / 20000) for at in range(20000)]
    assert pytest.approx(draws.count(VOCABULARY - 1) / 20000, abs=0.01) == 0.5
    assert len(set(draws)) == VOCABULARY


@given(st.integers(1, 3000), st.floats(0, 1, exclude_max=True))
def test_pick_equals_the_plain_search(size, random):
    """Picking in two stages finds what one cumulated sum finds."""
    weights = np.exp(logits(size, size))
    cumulated = np.cumsum(weights, dtype=np.float64)
    at = pick(weights, random)
    target = random * cumulated[-1]
    assert cumulated[at] >= target * (1 - 1e-9)
    assert (cumulated[at - 1] if at else 0) <= target * (1 + 1e-9)


def test_pick_never_chooses_what_weighs_nothing():
    """A token of probability 0 is never drawn, at neither end of the range."""
    weights = np.zeros(2000, np.float32)
    weights[[700, 900]] = 1
    assert {700, 900} == {pick(weights, random) for random in (0.0, 0.25, 0.5, 0.75, 1 - 2**-53)}


@given(
    arrays.arrays(np.float32, st.integers(1, 600), elements=st.floats(-50, 50, width=32)),
    st.integers(1, 700),
)
def test_largest_equals_a_stable_sort(values, count):
    """The largest values come in descending order, of equal ones the lower index first."""
    expected = np.argsort(-values, kind="stable")[:count]
    assert expected.tolist() == largest(values, count).tolist()


def test_largest_of_a_large_vocabulary():
    """The short cut for few of many values is exact."""
    values = logits(3, 50_000)
    expected = np.argsort(-values, kind="stable")
    for count in (1, 20, 300, 1000, 20_000):
        assert expected[:count].tolist() == largest(values, count).tolist()


@given(
    arrays.arrays(np.float32, st.integers(1, 400), elements=st.floats(-20, 0, width=32)),
    st.floats(1e-6, 1),
)
def test_nucleus_is_the_smallest_set_that_reaches_top_p(values, top_p):
    """Without its lightest token the nucleus would miss top_p; with it, it does not."""
    scaled = values - values.max()
    weights = np.exp(scaled).astype(np.float64)
    chosen = nucleus(scaled, top_p)
    mass = weights[chosen].sum()
    assert len(set(chosen.tolist())) == len(chosen) >= 1
    assert mass >= top_p * weights.sum() * (1 - 1e-6)
    assert mass - weights[chosen].min() <= top_p * weights.sum() * (1 + 1e-6)
    left = np.delete(weights, chosen)
    assert not len(left) or left.max() <= weights[chosen].min()


@pytest.mark.parametrize("field", ["temperature", "top_p", "min_p", "repetition_penalty"])
@pytest.mark.parametrize("value", [5e-324, 2.2e-311, 1e-60, 1e-20])
def test_smallest_numbers(field, value):
    """Numbers too small for the arithmetic are still numbers: they choose some token of all."""
    values = logits(size=600)
    row = RowSampler(params(**{field: value}), PROMPT)
    token = row.choose(values)
    if field in {"temperature", "top_p"}:
        assert token == values.argmax()
    elif field == "repetition_penalty":
        assert values[token] > 0
        assert token in PROMPT


def test_top_k_keeps_the_k_likeliest():
    """Only the k likeliest tokens are drawn, and all of them."""
    values = logits()
    assert set(largest(values, 3).tolist()) == possible(values / 9, params(top_k=3))


def test_min_p_drops_what_is_far_less_likely_than_the_best():
    """A token is kept from min_p times the best one's probability on."""
    values = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))
    assert {0, 1} == possible(values, params(min_p=0.5))
    assert {0} == possible(values, params(min_p=1.0))


def test_top_p_counts_what_top_k_left():
    """top_p is a share of what min_p and top_k left over."""
    values = np.log(np.array([0.4, 0.3, 0.2, 0.1], np.float32))
    assert {0, 1} == possible(values, params(top_p=0.6))
    assert {0} == possible(values, params(top_p=0.5, top_k=2))


def test_temperature_sharpens():
    """A low temperature makes the likeliest token likelier."""
    values = np.log(np.array([0.6, 0.4], np.float32))
    cold = sum(draw(values, params(temperature=0.5), at / 1000) == 0 for at in range(1000))
    assert pytest.approx(cold / 1000, abs=0.01) == 0.36 / 0.52


@pytest.mark.parametrize("temperature", [0.01, 0.05, 0.2, 1.0])
def test_what_is_too_light_to_be_drawn_changes_nothing(temperature):
    """A draw is the one that all weights give, however many of them are next to nothing."""
    values = logits()
    cumulated = np.cumsum(softmax(values / np.float32(temperature)))
    for at in range(1, 200):
        expected = int(np.searchsorted(cumulated, at / 200, side="right"))
        assert expected == draw(values, params(temperature=temperature), at / 200)


def test_random_numbers_depend_on_seed_and_position_alone():
    """The same seed and position give the same number; any other gives another."""
    numbers = [uniform(seed, position) for seed in range(30) for position in range(30)]
    assert len(set(numbers)) == 900
    assert all(0 <= number < 1 for number in numbers)
    assert pytest.approx(sum(numbers) / 900, abs=0.05) == 0.5
    assert uniform(7, 3) == uniform(7, 3) == uniform(7 + 2**64, 3)
    assert uniform(-1, 0) == uniform(2**64 - 1, 0)


def test_each_position_draws_anew():
    """Equal logits at different positions give different tokens, and a repetition the same."""
    values = np.zeros((1, VOCABULARY), np.float32)

    def run():
        row = RowSampler(params(seed=5), PROMPT)
        tokens = []
        for _ in range(5):
            tokens.append(sample(values, [row])[0][0])
            row.observe(tokens[-1])
        return tokens

    assert len(set(run())) == 5
    assert run() == run()


def penalized(sampling, completion=()):
    row = RowSampler(sampling, PROMPT)
    for token in completion:
        row.observe(token)
    return row._penalties.apply(np.array([1, 2, -2, 0, 4, 5], np.float32)).tolist()


def test_frequency_penalty_counts_the_completion():
    """Each occurrence in the completion costs the penalty; the prompt costs nothing."""
    assert penalized(params(frequency_penalty=0.5), [1, 1, 5]) == [1, 1, -2, 0, 4, 4.5]


def test_presence_penalty_is_paid_once():
    """A token that occurred in the completion pays once, however often it did."""
    assert penalized(params(presence_penalty=0.5), [1, 1, 5]) == [1, 1.5, -2, 0, 4, 4.5]


def test_repetition_penalty_counts_the_prompt_too():
    """Positive logits are divided, negative ones multiplied, for prompt and completion."""
    assert penalized(params(repetition_penalty=2.0), [5]) == [1, 1, -4, 0, 4, 2.5]


def test_penalties_remember_many_tokens():
    """A completion of more different tokens than there was room for is counted in full."""
    row = RowSampler(params(frequency_penalty=1.0), PROMPT)
    for token in range(1000):
        row.observe(token)
    assert tuple(row._penalties.apply(np.zeros(1001, np.float32))[[999, 1000]]) == (-1.0, 0.0)


@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_repetition_penalty_that_is_off(penalty):
    """A repetition penalty of 0 or 1 changes nothing."""
    assert RowSampler(params(temperature=0, repetition_penalty=penalty), PROMPT).is_argmax


def test_logits_stay_as_they_are():
    """Penalties of one row change neither the network's memory nor other rows."""
    values = np.stack([logits()] * 2)
    before = values.copy()
    rows = [RowSampler(params(frequency_penalty=2.0, temperature=0), PROMPT) for _ in range(2)]
    rows[0].observe(int(values[0].argmax()))
    (first, _), (second, _) = sample(values, rows)
    assert (values == before).all()
    assert first != second == int(values[0].argmax())


def test_logprobs_are_of_the_plain_distribution():
    """Logprobs ignore temperature and penalties and list the likeliest first."""
    values = logits()
    row = RowSampler(params(temperature=0.3, frequency_penalty=1.0, logprobs=3), PROMPT)
    ((token, reported),) = sample(values[None], [row])
    expected = np.log(softmax(values))
    assert expected[token] == pytest.approx(reported.chosen, abs=1e-4)
    assert largest(values, 3).tolist() == [top for top, _ in reported.top]
    assert [expected[top] for top, _ in reported.top] == pytest.approx(
        [value for _, value in reported.top], abs=1e-4
    )


def test_logprobs_without_alternatives():
    """Asking for none reports the chosen token alone."""
    assert logprobs(logits(), 3, 0).top == []


@pytest.mark.parametrize("low", [-np.inf, -3e38, np.nan])
def test_logprobs_are_finite(low):
    """Impossible tokens get a very low logprob instead of minus infinity."""
    values = np.array([0, low], np.float32)
    reported = logprobs(values, 1, 1)
    assert math.isfinite(reported.chosen)


def test_rows_of_a_batch_do_not_mix():
    """Each row of a batch gets what it would get alone."""
    values = np.stack([logits(seed) for seed in range(6)])
    settings_of = [
        params(temperature=0),
        params(seed=1),
        params(seed=2, top_k=5),
        params(seed=3, top_p=0.5, logprobs=2),
        params(seed=4, min_p=0.1),
        params(seed=5, presence_penalty=1.0),
    ]

    def rows():
        return [RowSampler(sampling, PROMPT) for sampling in settings_of]

    alone = [sample(values[at : at + 1], [row])[0] for at, row in enumerate(rows())]
    assert alone == sample(values, rows())


class Allowed:
    """Allows some ids, or none at all."""

    is_complete = False

    def __init__(self, *ids):
        self.ids = np.array(ids, np.int64)
        self.came = []

    def allowed(self):
        if len(self.ids) == 0:
            raise GrammarError("nothing fits")
        return self.ids

    def advance(self, token_id):
        self.came.append(token_id)


@pytest.mark.parametrize("temperature", [0.0, 1.0, 5.0])
def test_restricted_row_keeps_to_what_is_allowed(temperature):
    """However unlikely, an allowed token is chosen, and the likelier of two more often."""
    logits = np.array([50, 1, 40, 2, 45], np.float32)
    chosen = []
    for seed in range(50):
        sampling = SamplingParams(max_tokens=9, temperature=temperature, seed=seed, top_k=3)
        row = RowSampler(sampling, np.array([0]), Allowed(1, 3))
        chosen.append(row.choose(logits))
    assert set(chosen) <= {1, 3}
    assert chosen.count(3) > chosen.count(1)


def test_restriction_is_told_what_came():
    """The restriction advances with the completion, once for each token."""
    restriction = Allowed(1, 3)
    row = RowSampler(SamplingParams(max_tokens=9), np.array([0]), restriction)
    row.observe(3)
    row.observe(1)
    assert restriction.came == [3, 1]


def test_penalties_and_logprobs_of_a_restricted_row():
    """Penalties count by token id; what is reported is what the model said."""
    logits = np.array([9, 1, 0, 1.5], np.float32)
    sampling = SamplingParams(max_tokens=9, temperature=0, presence_penalty=1, logprobs=1)
    row = RowSampler(sampling, np.array([0]), Allowed(1, 3))
    row.observe(3)
    ((token, reported),) = sample(logits[None], [row])
    assert token == 1
    assert reported.top[0][0] == 0
    assert reported.chosen < -7


def test_row_without_a_token_does_not_disturb_the_others():
    """Where nothing fits, that row has an error in its place."""
    logits = np.array([[1, 2], [1, 2]], np.float32)
    sampling = SamplingParams(max_tokens=9, temperature=0)
    stuck = RowSampler(sampling, np.array([0]), Allowed())
    free = RowSampler(sampling, np.array([0]))
    error, chosen = sample(logits, [stuck, free])
    assert isinstance(error, GrammarError)
    assert chosen == (1, None)
