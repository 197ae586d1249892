"""Whatever happens in whatever order, nobody is let in who may not be: held against a plain model."""

import asyncio

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from edge.auth_cache import AuthCache, Sizes, Times
from fastrun.service.errors import ServiceError
from fastrun.v1.auth_pb2 import AccountState, KeyEvent, KeyState, VerifyKeyResponse
from fastrun.v1.error_pb2 import ErrorReason

APPROVED, SUSPENDED = AccountState.ACCOUNT_STATE_APPROVED, AccountState.ACCOUNT_STATE_SUSPENDED
ACTIVE, REVOKED = KeyState.KEY_STATE_ACTIVE, KeyState.KEY_STATE_REVOKED
FRESH_S, GRACE_S, CONFIRMED_S = 15.0, 60.0, 1.5
KEYS = range(3)


class Cache(RuleBasedStateMachine):
    """Three keys of two accounts, whose changes the watch tells sooner or later, or never.

    What the edge may know is what it was told: the truth as of the last event that came, and as of
    the answers it got. The model keeps every state that there was, by sequence, and the time.
    """

    def __init__(self):
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.now = 0.0
        self.accounts = [APPROVED, APPROVED]
        self.keys = {}
        self.history = [self.truth()]
        self.changed_at = [0.0]
        self.events = []
        self.told = 0
        self.confirmed_at = None
        self.is_down = False
        self.failed_at = -1e9
        self.reset_at = -1e9
        self.replies = []
        self.waiting = []
        self.cache = AuthCache(
            self.verify,
            Times(
                fresh_s=FRESH_S,
                grace_s=GRACE_S,
                unknown_s=5,
                retry_s=1,
                question_s=0.4,
                confirmed_s=CONFIRMED_S,
            ),
            Sizes(known=2, unknown=2),
            clock=lambda: self.now,
        )
        self.cache.on_reset(0)

    def teardown(self):
        while self.replies:
            self.replies.pop().set_result(None)
            self.turn()
        self.check()
        assert not self.waiting
        self.loop.close()

    def truth(self):
        """Who may call, by key; a key that does not exist is not in it."""
        return {
            key: self.accounts[key // 2] == APPROVED and state == ACTIVE
            for key, state in self.keys.items()
        }

    def turn(self):
        for _ in range(8):
            self.loop.run_until_complete(asyncio.sleep(0))

    async def verify(self, digest, timeout_s):
        assert timeout_s > 0
        key, sequence, down = digest[0], len(self.events), self.is_down
        until = self.now + timeout_s
        account, state = self.accounts[key // 2], self.keys.get(key)
        reply = self.loop.create_future()
        self.replies.append(reply)
        await reply  # the read was before
        if down or self.now > until:
            self.failed_at = self.now
            raise ServiceError(ErrorReason.ERROR_REASON_UNAVAILABLE, "down")
        if state is None:
            raise ServiceError(ErrorReason.ERROR_REASON_NOT_FOUND, "unknown")
        return VerifyKeyResponse(
            account_id=f"acc_{key // 2}",
            key_id=f"key_{key}",
            account_state=account,
            key_state=state,
            sequence=sequence,
        )

    def happen(self, account, key=None):
        event = KeyEvent(
            sequence=len(self.events) + 1,
            account_id=f"acc_{account}",
            key_id="" if key is None else f"key_{key}",
            account_state=self.accounts[account],
            key_state=KeyState.KEY_STATE_UNSPECIFIED if key is None else self.keys[key],
        )
        self.events.append(event)
        self.history.append(self.truth())
        self.changed_at.append(self.now)

    @initialize()
    def issue(self):
        """Begin with one key of each account, and a watch."""
        for key in (0, 2):
            self.keys[key] = ACTIVE
            self.happen(key // 2, key)
        self.tell(5)

    @rule(account=st.integers(0, 1), state=st.sampled_from([APPROVED, SUSPENDED]))
    def change_account(self, account, state):
        self.accounts[account] = state
        self.happen(account)

    @rule(key=st.sampled_from(KEYS), state=st.sampled_from([ACTIVE, REVOKED]))
    def issue_or_change_key(self, key, state):
        self.keys[key] = state
        self.happen(key // 2, key)

    @rule(seconds=st.sampled_from([0.1, 0.1, 1.0, 16.0, 61.0]))
    def wait(self, seconds):
        self.now += seconds

    @rule(most=st.integers(1, 5))
    def tell(self, most):
        """The watch tells some events, and confirms if these are all."""
        events = self.events[self.told : self.told + most]
        self.cache.on_events(events)
        self.told += len(events)
        if self.told == len(self.events):
            self.cache.on_confirmed(self.told)
            self.confirmed_at = self.now
        self.turn()

    @rule(kind=st.sampled_from(["down", "up", "up", "cut", "reset"]))
    def trouble(self, kind):
        """Postgres goes or comes, or the watch is cut or has missed events."""
        if kind == "cut":
            self.cache.on_broken()
            self.confirmed_at = None
        elif kind == "reset":
            self.told, self.reset_at = len(self.events), self.now
            self.cache.on_reset(self.told)
        else:
            self.is_down = kind == "down"

    @precondition(lambda self: self.replies)
    @rule(data=st.data())
    def reply(self, data):
        index = data.draw(st.integers(0, len(self.replies) - 1))
        self.replies.pop(index).set_result(None)
        self.turn()
        self.check()

    @rule(key=st.sampled_from(KEYS), is_slow=st.booleans())
    def look_up(self, key, is_slow):
        """Somebody calls, and perhaps waits for an answer for long."""
        task = self.loop.create_task(self.cache.entry(bytes([key]) * 32))
        self.waiting.append((task, key, self.oldest()))
        self.turn()
        while self.replies and not task.done() and not is_slow:
            self.replies.pop().set_result(None)
            self.turn()
        self.check()

    @rule(key=st.sampled_from(KEYS), state=st.sampled_from([ACTIVE, REVOKED]), told=st.booleans())
    def change_while_asked(self, key, state, told):
        """A key changes between the read and the reply, and others ask when that is told."""
        self.look_up(key, is_slow=True)
        self.issue_or_change_key(key, state)
        if told:
            self.tell(5)
        self.look_up(key, is_slow=True)
        while self.replies:
            self.replies.pop(0).set_result(None)
            self.turn()
            self.check()

    def check(self):
        """Whoever passes could call at some moment since the oldest that may be gone by."""
        for each in [each for each in self.waiting if each[0].done()]:
            self.waiting.remove(each)
            task, key, oldest = each
            is_out = self.is_out()
            try:
                entry = task.result()
            except ServiceError:
                assert is_out
                continue
            passes = entry is not None and entry.may_call(0)
            truths = self.history[min(oldest, self.oldest()) if is_out else oldest :]
            assert passes in {truth.get(key, False) for truth in truths}

    def is_out(self):
        return self.now - self.failed_at < 1 or (self.failed_at > -1 and bool(self.replies))

    def oldest(self):
        """The sequence of the oldest truth that a look-up which begins now may go by.

        It knows what the watch has told, unless events were missing and nobody can be asked again;
        and what was true FRESH_S ago, unless nothing has happened since or nobody can be asked.
        """
        is_current = self.confirmed_at is not None and self.now - self.confirmed_at <= CONFIRMED_S
        is_out = self.is_out()
        told = 0 if is_out and self.now - self.reset_at < GRACE_S else self.told
        if is_current and not is_out:
            return told
        limit = self.now - (GRACE_S if is_out else FRESH_S)
        known = [sequence for sequence, at in enumerate(self.changed_at) if at <= limit]
        return max(told, known[-1] if known else 0)

    @invariant()
    def bounded(self):
        assert len(self.cache._known) <= 2
        assert len(self.cache._unknown) <= 2
        indexed = self.cache._known
        assert len(indexed._by_key) == len(indexed)
        assert sum(map(len, indexed._by_account.values())) == len(indexed)


TestCache = Cache.TestCase
TestCache.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
