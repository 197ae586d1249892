"""Who calls, and what they may use."""

from dataclasses import dataclass

from fastrun.v1.auth_pb2 import Limits, VerifyKeyResponse


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
