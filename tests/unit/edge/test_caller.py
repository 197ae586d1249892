"""Who calls, as time passes."""

from datetime import UTC, datetime

import pytest

from edge.caller import Caller
from fastrun.v1.auth_pb2 import VerifyKeyResponse

HOUR_S = 3600.0


def used(date, age_s):
    answer = VerifyKeyResponse(account_id="a", account_month_tokens=1000, key_month_tokens=10)
    wall_s = datetime(*date, tzinfo=UTC).timestamp()
    caller = Caller.of(answer).at(wall_s, age_s)
    return caller.account_month_tokens, caller.key_month_tokens


@pytest.mark.parametrize(
    ("date", "age_s", "tokens"),
    [
        ((2026, 11, 30, 23, 59, 59), 0.0, (1000, 10)),
        ((2026, 11, 30, 23, 59, 59), 100 * HOUR_S, (1000, 10)),
        ((2026, 12, 1, 0, 0, 5), 10.0, (0, 0)),
        ((2026, 12, 1, 9), 12 * HOUR_S, (0, 0)),
        ((2026, 12, 1, 9), HOUR_S, (1000, 10)),
        ((2027, 12, 1, 9), 365 * 24 * HOUR_S, (0, 0)),
        # Where tokens are recorded the old month may have lasted a little longer.
        ((2026, 12, 1, 0, 0, 30), 0.0, (0, 0)),
    ],
)
def test_a_month_that_is_over(date, age_s, tokens):
    """An answer that was kept from a month before says nothing about what is used in this one."""
    assert used(date, age_s) == tokens
