"""Who calls, and what they may use."""

import time
from dataclasses import dataclass, replace

from fastrun.v1.auth_pb2 import Limits, VerifyKeyResponse

CLOCKS_APART_S = 60.0
"""So much later than here a month may begin where tokens are recorded."""


@dataclass(frozen=True, slots=True)
class Caller:
    """An account and one of its keys, as the auth service knows them."""

    account_id: str
    key_id: str
    cache_salt: str
    account_limits: Limits
    key_limits: Limits
    account_month_tokens: int
    """Recorded since the month began, as are those of the key."""
    key_month_tokens: int
    models: frozenset[str] = frozenset()
    """All that there are for this key; empty: every model."""

    def may_use(self, model: str) -> bool:
        """Whether a model exists for this key."""
        return not self.models or model in self.models

    def at(self, wall_s: float, age_s: float) -> "Caller":
        """The same now: what was recorded in a month that is over counts no more.

        Args:
            wall_s: seconds since 1970.
            age_s: how long ago this was answered.
        """
        if _month(wall_s) == _month(wall_s - age_s - CLOCKS_APART_S):
            return self
        return replace(self, account_month_tokens=0, key_month_tokens=0)

    @classmethod
    def of(cls, known: VerifyKeyResponse) -> "Caller":
        """Take from an answer what a request needs."""
        return cls(
            account_id=known.account_id,
            key_id=known.key_id,
            cache_salt=known.cache_salt,
            account_limits=known.account_limits,
            key_limits=known.key_limits,
            account_month_tokens=known.account_month_tokens,
            key_month_tokens=known.key_month_tokens,
            models=frozenset(known.models),
        )


def _month(wall_s: float) -> tuple[int, int]:
    """Year and month in UTC, as months are counted."""
    then = time.gmtime(wall_s)
    return then.tm_year, then.tm_mon
