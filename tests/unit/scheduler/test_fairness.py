"""Whose turn it is among accounts."""

import itertools
from collections import Counter, deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from scheduler.fairness import FORGET_FROM, MOST_COMPARED, TOGETHER_S, Crowd, FairLine
from scheduler.prefix_index import Prompt
from scheduler.waiting import Waiting

numbers = itertools.count(1)


def place(account_id, tokens=10, *, arrived_at=0.0, begun=False, home="anywhere"):
    number = next(numbers)
    return Waiting(
        edge_id="e",
        request_id=f"{account_id}-{number}",
        generations=deque([0]),
        account_id=account_id,
        model="m",
        excluded=frozenset(),
        front=False,
        arrived_at=arrived_at,
        asked_at=arrived_at,
        deadline=arrived_at + 2 * TOGETHER_S,
        number=number,
        tokens=tokens,
        begun=begun,
        prompt=Prompt(hashes=(home,)),
    )


def loss_at(worker):
    """What a prompt loses at a worker, if it has a home and that is another one."""
    return lambda prompt: int(prompt.hashes[0] not in (worker, "anywhere"))


@pytest.fixture
def line():
    return FairLine()


def fill(line, **accounts):
    """Let so many places of each account wait, in this order."""
    for account_id, (count, tokens) in accounts.items():
        for _ in range(count):
            line.add(place(account_id, tokens))


def serve(line, slots=1):
    """Give slots to whose turn it is; says who got them."""
    served = ""
    for _ in range(slots):
        head = line.head()
        line.charge(head.account_id, head.tokens)
        line.remove(head)
        served += head.account_id
    return served


def test_accounts_take_turns(line):
    """However many each one has waiting, and whoever came first."""
    fill(line, a=(5, 10), b=(2, 10), c=(1, 10))
    assert serve(line, 8) == "abcabaaa"


def test_turns_are_weighed_by_tokens(line):
    """Who asks for a quarter of the tokens gets four times as many slots."""
    fill(line, a=(20, 40), b=(20, 10))
    assert Counter(serve(line, 20)) == {"a": 4, "b": 16}


def test_who_comes_anew_goes_next(line):
    """A newcomer waits for nobody's backlog, and has no claim to what was given before it came."""
    fill(line, a=(50, 10))
    serve(line, 20)
    fill(line, b=(30, 10))
    assert serve(line, 6) == "bababa"


def test_a_large_request_is_paid_for_afterwards(line):
    """It is served at once, since it may not wait for long, and then its account waits."""
    fill(line, a=(50, 10))
    serve(line)
    fill(line, b=(2, 100))
    assert serve(line, 14) == "baaaaaaaaaabaa"


def test_leaving_pays_no_debts(line):
    """Who asks one at a time has no more than who has all of them wait."""
    fill(line, a=(50, 10))
    serve(line)
    order = ""
    for _ in range(3):
        fill(line, b=(1, 50))
        while not order.endswith("b"):
            order += serve(line)
        order += serve(line)
    assert order == "ba" + "aaaab" + "a" + "aaaab" + "a"


def test_what_was_given_while_nobody_waited_counts(line):
    """The last slot that an account got at once is a turn like another."""
    line.charge("a", 10)
    fill(line, a=(1, 10), b=(1, 10))
    assert serve(line, 2) == "ba"


def test_who_gives_up_has_not_paid(line):
    """A place that is cancelled or expires costs its account nothing."""
    fill(line, a=(1, 10))
    gone = [place("b", 1000) for _ in range(5)]
    for each in gone:
        line.add(each)
    for each in gone:
        line.remove(each)
    fill(line, b=(1, 10))
    assert serve(line, 2) == "ab"
    assert len(line) == line.accounts == 0


def test_within_an_account_the_earliest_goes_first(line):
    """Also one that came later, and has waited elsewhere."""
    late, early = place("a", arrived_at=2.0), place("a", arrived_at=1.0)
    line.add(late)
    line.add(early)
    assert list(line) == [early, late]
    assert [line.count_before(each) for each in (early, late)] == [0, 1]


def give(line, worker):
    """Give a slot of a worker to whom it suits."""
    suited = line.suited(loss_at(worker))
    line.charge(suited.account_id, suited.tokens)
    line.remove(suited)
    return suited


def test_a_slot_goes_to_whom_it_suits(line):
    """The first of those who lose nothing by it, and where all lose as much, the first of all."""
    first, second = place("a", home="w1"), place("a", home="w2")
    third, fourth = place("a", home="w2"), place("a")
    for each in (first, second, third, fourth):
        line.add(each)
    assert line.suited(loss_at("w2")) is second
    assert line.suited(loss_at("w1")) is first
    assert line.suited(loss_at("w3")) is fourth
    line.remove(fourth)
    assert line.suited(loss_at("w3")) is first
    assert [give(line, "w2") for _ in range(3)] == [second, third, first]
    assert line.suited(loss_at("w1")) is None


def test_nobody_is_passed_over_for_who_came_much_later(line):
    """Only those that came soon after the first may go before it, of its account and of others."""
    first = place("a", 100, home="w1")
    soon = [place(account_id, home="w2", arrived_at=TOGETHER_S) for account_id in "ab"]
    later = [place(account_id, home="w2", arrived_at=TOGETHER_S + 0.1) for account_id in "ab"]
    for each in (first, *soon, *later):
        line.add(each)
    assert [give(line, "w2") for _ in range(2)] == soon
    assert line.suited(loss_at("w2")) is first


def test_an_account_is_passed_over_for_as_much_as_it_asks_for(line):
    """Others may have so many tokens more before the slot is its own, whether that suits or not."""
    large = place("a", 100, home="w1")
    line.add(large)
    for _ in range(20):
        line.add(place("b", 30, home="w2"))
    assert [give(line, "w2").account_id for _ in range(6)] == ["b", "b", "b", "b", "a", "b"]


def test_a_small_request_is_hardly_passed_over(line):
    """What lets a large one wait for long lets others pass a small one just once."""
    line.add(place("a", 1, home="w1"))
    for account_id in "bc":
        for _ in range(5):
            line.add(place(account_id, 100, home="w2"))
    assert "".join(give(line, "w2").account_id for _ in range(4)) == "bcab"


def test_few_are_asked_whether_a_slot_suits_them(line):
    """Whoever stands far behind is not, however many wait."""
    asked = []
    for _ in range(3 * MOST_COMPARED):
        line.add(place("a", home="w1"))
    line.suited(lambda prompt: asked.append(prompt) or 1)
    assert len(asked) == MOST_COMPARED


def test_positions_among_very_many_accounts(line):
    """They are nearly right, since some accounts stand for all."""
    for _ in range(5):
        for number in range(1000):
            line.add(place(f"a{number}", 10))
    order = list(line)
    for index in (0, 1, 50, 500, 999, 1000, 1500, 4321, 4999):
        assert line.count_before(order[index]) == pytest.approx(index, rel=0.05, abs=10)


def test_what_is_past_is_forgotten(line):
    """Accounts that owe nothing any more take no memory."""
    for number in range(10 * FORGET_FROM):
        line.charge(f"a{number}", 10)
        line.charge("all", 10)
    assert len(line._owing) <= FORGET_FROM


def test_newest_of_the_most_makes_way(line):
    """In a full queue a newcomer has the newest place of whoever has most, if it has fewer."""
    fill(line, a=(2, 10), b=(3, 10))
    newest = list(line)[-1]
    begun = place("b", begun=True)
    line.add(begun)
    assert newest.account_id == "b"
    assert line.who_makes_way("c") is newest
    assert line.who_makes_way("a") is newest
    assert line.who_makes_way("b") is None


def test_of_those_that_have_most_the_one_ahead_makes_way(line):
    """Of accounts with as many waiting, it is the one that has had more."""
    line.charge("b", 10)
    fill(line, a=(2, 10), b=(2, 10), c=(2, 10))
    assert line.who_makes_way("d").account_id == "b"


def test_nobody_makes_way_for_who_has_had_more(line):
    """Where one place only would change hands, it stays with the account that has had less."""
    line.charge("b", 10)
    fill(line, a=(1, 10))
    assert line.who_makes_way("b") is None
    assert line.who_makes_way("c").account_id == "a"
    fill(line, a=(1, 10))
    assert line.who_makes_way("b").account_id == "a"


def test_crowd():
    """It knows who has most, up and down."""
    crowd = Crowd()
    for account_id in "aabbbc":
        crowd.change(account_id, 1)
    assert (crowd.most, crowd.largest()) == (3, ["b"])
    crowd.change("b", -1)
    assert (crowd.most, sorted(crowd.largest())) == (2, ["a", "b"])
    for account_id in "abbac":
        crowd.change(account_id, -1)
    assert (crowd.most, crowd.largest()) == (0, [])


class Fairness(RuleBasedStateMachine):
    """Accounts come, go, wait and are served at random; what each gets is counted from outside."""

    accounts = st.sampled_from("abcd")
    sizes = st.integers(1, 100)
    workers = st.sampled_from(["anywhere", "w1", "w2"])

    def __init__(self):
        super().__init__()
        self.line = FairLine()
        self.waiting = []
        self.now = 0.0
        self.total = Counter()
        # What everybody had when an account began to wait, and its own last slot before that.
        self.since = {}
        self.last = Counter()
        self.largest = Counter()

    def came(self, account_id):
        if account_id not in self.since:
            self.since[account_id] = (self.total.copy(), self.last[account_id])

    @rule(
        account_id=accounts,
        tokens=sizes,
        count=st.integers(1, 5),
        waited=st.integers(0, 3),
        home=workers,
    )
    def come(self, account_id, tokens, count, waited, home):
        for _ in range(count):
            self.now += 1.0
            each = place(account_id, tokens, arrived_at=self.now - waited, home=home)
            self.line.add(each)
            self.waiting.append(each)
            self.came(account_id)

    @precondition(lambda self: not self.waiting)
    @rule(account_id=accounts, tokens=sizes)
    def at_once(self, account_id, tokens):
        self.given(account_id, tokens)
        self.line.charge(account_id, tokens)

    @precondition(lambda self: self.waiting)
    @rule(slots=st.integers(1, 20), worker=workers)
    def serve(self, slots, worker):
        for _ in range(min(slots, len(self.waiting))):
            head = self.line.head()
            assert head is self.first_of(head.account_id)
            suited = self.line.suited(loss_at(worker))
            assert suited.arrived_at <= self.first_of(suited.account_id).arrived_at + TOGETHER_S
            assert suited.arrived_at <= head.arrived_at + TOGETHER_S
            if suited is not head:
                assert loss_at(worker)(head.prompt) > loss_at(worker)(suited.prompt)
            self.line.charge(suited.account_id, suited.tokens)
            # Who goes ahead of the head is so much ahead of its turn at most.
            ahead = head.tokens if suited.account_id != head.account_id else 0
            self.left(suited)
            self.given(suited.account_id, suited.tokens, ahead)
            self.fair(suited.account_id)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def give_up(self, data):
        self.left(data.draw(st.sampled_from(self.waiting)))

    def left(self, each):
        self.line.remove(each)
        self.waiting.remove(each)
        if not any(other.account_id == each.account_id for other in self.waiting):
            self.since.pop(each.account_id)

    def first_of(self, account_id):
        own = (each for each in self.waiting if each.account_id == account_id)
        return min(own, key=lambda each: each.turn)

    def given(self, account_id, tokens, ahead=0):
        self.total[account_id] += tokens
        self.last[account_id] = tokens + ahead
        self.largest[account_id] = max(self.largest[account_id], tokens)

    def fair(self, served):
        """Look whether whoever waits has had as much as who was served, but for a request each."""
        for account_id, (before, own_last) in self.since.items():
            own = self.total[account_id] - before[account_id]
            got = self.total[served] - before[served]
            patience = self.first_of(account_id).tokens
            assert got <= own + own_last + self.largest[served] + patience

    @invariant()
    def counts_are_right(self):
        order = list(self.line)
        assert set(order) == set(self.waiting)
        assert len(self.line) == len(order) == len(self.waiting)
        assert self.line.accounts == len(self.since)
        assert (self.line.head() is None) == (not order)
        assert [self.line.count_before(each) for each in order] == list(range(len(order)))
        counts = Counter(each.account_id for each in order)
        most = max(counts.values(), default=0)
        for account_id in "abcde":
            loser = self.line.who_makes_way(account_id)
            if counts[account_id] + 1 < most:
                assert counts[loser.account_id] == most
                assert loser.turn == max(
                    each.turn for each in order if each.account_id == loser.account_id
                )
            elif counts[account_id] >= most:
                assert loser is None


Fairness.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestFairness = Fairness.TestCase
