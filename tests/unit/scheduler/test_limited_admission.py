"""Limits where requests come in: what is refused for them, charged, given back and settled."""

import pytest

from fastrun.service import leases

LIMITS = {"requests_per_minute": 10, "tokens_per_minute": 1000}


@pytest.fixture
def ask(desk):
    """How to ask for an account with limits."""

    def make(link, request_id, *, limits=LIMITS, on=desk, **fields):
        told = {"account_limits": limits, "key_id": "key", "token_estimate": 100} | fields
        return on.acquire(link, request_id, **told)

    return make


def left(answer):
    return (answer.rate_limit.remaining_requests, answer.rate_limit.remaining_tokens)


def test_limit_reached(desk, ask, reasons):
    """Over a limit a request is refused at once, with the figures; others are not touched."""
    desk.worker(slots=8)
    edge = desk.edge()
    limits = {"requests_per_minute": 2}
    granted = [ask(edge, f"r{n}", limits=limits)[0] for n in range(2)]
    assert [each.rate_limit.remaining_requests for each in granted] == [1, 0]
    desk.now += 20.0
    (refused,) = ask(edge, "r2", limits=limits)
    assert refused.error.reason == reasons["limit_reached"]
    assert refused.error.message == "requests per minute limit of 2 reached"
    assert refused.error.retry_after_ms == 40_000
    assert (refused.rate_limit.limit_requests, refused.rate_limit.remaining_requests) == (2, 0)
    assert list(refused.generations) == [0]
    assert desk.rejections == [reasons["limit_reached"]]
    desk.now += 40.0
    assert ask(edge, "r3", limits=limits)[0].lease_id


def test_of_the_key_alone(desk, ask):
    """A key's limit holds up that key, and no other of its account."""
    desk.worker(slots=8)
    edge = desk.edge()
    of_key = {"limits": {}, "key_limits": {"requests_per_minute": 1}}
    assert ask(edge, "r1", **of_key)[0].lease_id
    assert ask(edge, "r2", **of_key)[0].error.message
    assert ask(edge, "r3", **of_key, key_id="other")[0].lease_id


def test_refused_for_capacity(new_desk, ask):
    """What is refused for capacity is not charged."""
    desk = new_desk(queue_per_slot=0)
    desk.worker(slots=1)
    edge = desk.edge()
    assert left(ask(edge, "r1", on=desk)[0]) == (9, 900)
    assert left(ask(edge, "r2", on=desk)[0]) == (9, 900)


@pytest.mark.parametrize("end", ["expires", "is cancelled", "is released"])
def test_given_back(desk, ask, end):
    """What waits in vain, is cancelled, or is released unstarted was not used."""
    worker = desk.worker(slots=1)
    edge = desk.edge()
    (first,) = ask(edge, "r1")
    ask(edge, "r2")
    if end == "expires":
        desk.pass_time(11.0)
        (rejected,) = edge.take("rejected")
        assert left(rejected) == (9, 900)
    elif end == "is cancelled":
        desk.tell(edge, cancel={"request_id": "r2"})
    else:
        desk.free(worker, first.lease_id)
        (second,) = edge.take("granted")
        assert left(second) == (8, 800)
        desk.tell(edge, release={"lease_id": second.lease_id})
    assert desk.rate_limit("acc", "key").remaining_requests == 9


def test_settled(desk, ask):
    """What its worker says that it used takes the place of what it might have."""
    worker = desk.worker(slots=1)
    edge = desk.edge()
    (granted,) = ask(edge, "r1")
    usage = {"prompt_tokens": 20, "completion_tokens": 13}
    desk.report(worker, slot_freed={"lease_id": granted.lease_id, "usage": usage})
    assert left(ask(edge, "r2")[0]) == (8, 1000 - 33 - 100)


def test_tried_again(desk, ask):
    """A request that a worker refused is not charged again, nor held up by a limit."""
    worker = desk.worker(slots=2)
    edge = desk.edge()
    limits = {"requests_per_minute": 1, "concurrent_requests": 1}
    (granted,) = ask(edge, "r1", limits=limits)
    desk.free(worker, granted.lease_id)
    (again,) = ask(edge, "r1", limits=limits, front=True)
    assert again.rate_limit.remaining_requests == 0
    assert ask(edge, "r2", limits=limits)[0].error.message
    assert desk.held() == 1


def test_resumed(desk, ask):
    """What goes on elsewhere passes every limit, counts as concurrent, and is settled as one."""
    lost, edge = desk.worker(), desk.edge()
    limits = {"requests_per_minute": 1, "tokens_per_minute": 100, "concurrent_requests": 1}
    (granted,) = ask(edge, "r1", limits=limits, token_estimate=100)
    desk.tell(edge, lease_lost={"lease_id": granted.lease_id})
    desk.sessions.of_workers.left(lost, desk.now)
    desk.pass_time(6.0)
    worker = desk.worker("w2", "i2", slots=2)
    month = {"tokens_per_month": 1}
    (again,) = ask(
        edge, "r1", limits=limits | month, key_limits=month, resume=True, token_estimate=100
    )
    assert left(again) == (0, 0)
    assert desk.sessions.admission.limits.in_flight() == {"r1"}
    assert ask(edge, "r2", limits=limits)[0].error.message.startswith("requests per minute")
    usage = {"prompt_tokens": 20, "completion_tokens": 30}
    desk.report(worker, slot_freed={"lease_id": again.lease_id, "usage": usage})
    figures = desk.rate_limit("acc", "key")
    assert (figures.remaining_tokens, figures.limit_tokens) == (50, 100)


@pytest.mark.parametrize("end", ["its client leaves", "nobody can take it", "its time is over"])
def test_what_ran_is_not_given_back(desk, ask, end):
    """A request that lost its worker and gets no other one has been served in part."""
    desk.worker()
    desk.worker("w2", "i2")
    edge = desk.edge()
    ask(edge, "busy", limits={}, excluded_worker_ids=["w1"])
    limits = {"requests_per_minute": 2}
    (granted,) = ask(edge, "r1", limits=limits)
    desk.worker("w1", "i3", slots=0)
    desk.tell(edge, lease_lost={"lease_id": granted.lease_id})
    barred = ["w1"] if end != "nobody can take it" else ["w1", "w2"]
    ask(edge, "r1", limits=limits, resume=True, front=True, excluded_worker_ids=barred)
    if end == "its client leaves":
        desk.tell(edge, cancel={"request_id": "r1"})
    elif end == "its time is over":
        desk.pass_time(11)
    assert not len(desk.queue)
    figures = desk.rate_limit("acc", "key")
    assert figures.remaining_requests == 0


def test_resumed_after_a_change_of_leader(desk, ask):
    """A new scheduler that knows nothing of it lets it pass as well."""
    desk.worker()
    edge = desk.edge()
    limits = {"requests_per_minute": 1, "concurrent_requests": 0}
    (granted,) = ask(edge, "r1", limits=limits, resume=True)
    assert granted.lease_id


def test_generations_are_one_request(desk, ask):
    """A request of many generations counts once, and does not stand in its own way."""
    worker = desk.worker(slots=1)
    edge = desk.edge()
    limits = {"concurrent_requests": 1, "requests_per_minute": 10}
    granted, _ = ask(edge, "r1", limits=limits, generations=range(8), choices=8)
    assert ask(edge, "r2", limits=limits)[0].error.message
    for generation in range(8):
        assert granted.generation == generation
        assert granted.rate_limit.remaining_requests == 9
        usage = {"prompt_tokens": 10, "completion_tokens": 1}
        desk.report(worker, slot_freed={"lease_id": granted.lease_id, "usage": usage})
        granted = next(iter(edge.take("granted")), None)
    assert granted is None
    assert ask(edge, "r3", limits=limits)[0].lease_id


def test_never_more_than_the_limit_run(desk, ask):
    """Of 50 parallel requests at a limit of 10, over 2 edges, never more than 10 run."""
    worker = desk.worker(slots=30)
    edges = [desk.edge("e1"), desk.edge("e2")]
    limits = {"concurrent_requests": 10}
    todo, running, most, ended = list(range(50)), [], 0, 0
    while ended < 50:
        for number in list(todo):
            (answer,) = ask(edges[number % 2], f"r{number}", limits=limits)
            if hasattr(answer, "lease_id"):
                todo.remove(number)
                running.append(answer.lease_id)
            else:
                assert answer.error.message == "concurrent requests limit of 10 reached"
        most = max(most, desk.held())
        desk.free(worker, running.pop(0))
        ended += 1
        desk.now += 1.0
    assert most == 10


def test_after_a_change_of_leader(desk, new_desk, ask):
    """A new scheduler counts what its workers say they run, for the account and for the key."""
    desk.worker(slots=8)
    edge = desk.edge()
    granted = [ask(edge, f"r{n}", choices=2)[0] for n in range(3)]
    claims = leases.read(granted[0].lease)
    assert (claims.account_id, claims.key_id, claims.choices) == ("acc", "key", 2)
    heir = new_desk()
    held = [each.lease_id for each in granted]
    edge = heir.edge(lease_ids=held, term=1)
    worker = heir.worker(slots=8, running=[each.lease for each in granted], term=1)
    limits = {"concurrent_requests": 4}
    assert ask(edge, "r4", on=heir, limits=limits)[0].lease_id
    assert ask(edge, "r5", on=heir, limits=limits)[0].error.message
    key_limits = {"concurrent_requests": 4}
    assert ask(edge, "r6", on=heir, limits={}, key_limits=key_limits)[0].error.message
    heir.free(worker, held[0])
    assert ask(edge, "r7", on=heir, limits=limits)[0].lease_id


def test_a_worker_that_is_gone(desk, ask):
    """What ran on a worker that is gone does not count, until the worker is back with it."""
    lost = desk.worker()
    desk.worker("w2", "i2", slots=4)
    edge = desk.edge()
    limits = {"concurrent_requests": 1}
    (granted,) = ask(edge, "r1", limits=limits, excluded_worker_ids=["w2"])
    assert ask(edge, "r2", limits=limits)[0].error.message
    desk.sessions.of_workers.left(lost, desk.now)
    desk.pass_time(6.0)
    (second,) = ask(edge, "r3", limits=limits)
    desk.worker(running=[granted.lease])
    assert len(desk.sessions.admission.limits.in_flight()) == 2
    assert ask(edge, "r4", limits={"concurrent_requests": 2})[0].error.message
    assert second.lease_id


def test_usage_is_remembered(desk, ask):
    """What a worker told of a generation can be asked for by its request."""
    worker = desk.worker(slots=2)
    edge = desk.edge()
    first, second = ask(edge, "r1", generations=[0, 1])
    usage = {"prompt_tokens": 20, "cached_tokens": 4, "completion_tokens": 13}
    desk.report(worker, slot_freed={"lease_id": first.lease_id, "usage": usage})
    (found,) = desk.sessions.usage_log.find(["r1"], desk.now)
    assert (found.worker_id, found.generation, found.usage.completion_tokens) == ("w1", 0, 13)
    assert [each.lease_id for each in desk.book.of_request("r1")] == [second.lease_id]
