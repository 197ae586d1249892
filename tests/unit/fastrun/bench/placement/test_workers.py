import pytest

from fastrun.bench.placement.workers import Machine, SimulatedWorker

# 10 ms a step, 1 ms more for each request in it, 1 ms for each token of a prompt.
MACHINE = Machine(
    slots=3,
    step_s=0.010,
    step_per_request_s=0.001,
    prefill_tokens_per_s=1000.0,
    chunk_tokens=512,
    cache_blocks=16,
)


def run(worker):
    """Let a worker do all that it has to; returns first tokens and ends, by request."""
    first, ends = {}, {}
    while worker.wake_s is not None:
        now = worker.wake_s
        progress = worker.advance()
        first |= {each.request.number: now for each in progress.first_token}
        ends |= {each.request.number: now for each in progress.finished}
    return first, ends


def test_one(ask):
    """A prompt takes a step for each chunk, the last of which gives the first token."""
    worker = SimulatedWorker(MACHINE)
    request = ask(prompt=1100, output=4)
    worker.start(request, 2.0)
    first, ends = run(worker)

    assert pytest.approx(2 + 3 * 0.011 + 1.1) == first[0]
    assert pytest.approx(first[0] + 3 * 0.011) == ends[0]
    assert pytest.approx(ends[0] - 2) == MACHINE.alone_s(request)


def test_two(ask):
    """A prompt that comes while another answers waits for the step, then shares its own with it."""
    worker = SimulatedWorker(MACHINE)
    worker.start(ask(0, prompt=500, output=101), 0.0)
    worker.advance()  # 0.511: the first token; from then on steps of 11 ms
    worker.start(ask(1, prompt=600, output=3, topic=1), 0.530)
    first, ends = run(worker)

    began = 0.511 + 2 * 0.011
    assert pytest.approx(began + 2 * 0.012 + 0.6) == first[1]
    assert pytest.approx(first[1] + 2 * 0.012) == ends[1]
    # One token at first, two before the prompt, two with it, and two beside the other answer.
    assert pytest.approx(ends[1] + 94 * 0.011) == ends[0]


def test_turns(ask):
    """Prompts are computed one after the other, and those that wait slow nobody down."""
    worker = SimulatedWorker(MACHINE)
    for number in range(3):
        worker.start(ask(number, prompt=512, output=1, topic=number), 0.0)

    assert pytest.approx(run(worker)[0]) == {0: 0.523, 1: 1.046, 2: 1.569}


def test_cached(ask):
    """What the cache has is not computed; the last token of a prompt always is."""
    worker = SimulatedWorker(MACHINE)
    worker.start(ask(0, prompt=1024, output=1), 0.0)
    run(worker)
    worker.start(ask(1, prompt=1300, output=1), 10.0)
    first, _ = run(worker)
    worker.start(ask(2, prompt=1024, output=1), 20.0)
    again, _ = run(worker)

    assert pytest.approx(10 + 0.011 + 0.276) == first[1]
    assert pytest.approx(20 + 0.011 + 0.512) == again[2]


def test_room(ask):
    """A request for whose blocks there is no room waits until another one ends."""
    worker = SimulatedWorker(MACHINE)
    worker.start(ask(0, prompt=512 * 10, output=50), 0.0)
    worker.start(ask(1, prompt=512 * 10, output=1, topic=1), 0.0)
    first, ends = run(worker)

    assert pytest.approx(ends[0] + 10 * 0.011 + 5.12) == first[1]


def test_slots(ask):
    """A worker takes no more than it has slots for, and nothing that can never fit."""
    worker = SimulatedWorker(MACHINE)
    with pytest.raises(ValueError, match="fit"):
        worker.start(ask(prompt=512 * 16, output=1), 0.0)
    for number in range(3):
        worker.start(ask(number), 0.0)
    with pytest.raises(ValueError, match="slot"):
        worker.start(ask(3), 0.0)


def test_report(ask):
    """A worker tells what it has to compute and what it holds, in the middle of a stride too."""
    worker = SimulatedWorker(MACHINE)
    worker.start(ask(0, prompt=1024, output=100), 0.0)
    worker.start(ask(1, prompt=1024, output=100, topic=1), 0.0)
    before = worker.report(0.6)
    for _ in range(2):
        worker.advance()
    after = worker.report(worker.wake_s - 0.001)

    assert (before.running, before.waiting) == ([0, 1], 1)
    assert (before.prefill_tokens, before.context_tokens) == (512 + 1024, 512)
    assert (after.prefill_tokens, after.waiting, after.blocks_used) == (0, 0, 6)
    # The first has had two more while the second was computed, and its last step is under way.
    assert after.context_tokens == 2 * 1024 + 99 + 97
