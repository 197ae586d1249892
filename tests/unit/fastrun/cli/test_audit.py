import pytest

from fastrun.cli.audit import change_text


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({}, ""),
        ({"name": {"from": None, "to": "ada"}}, "name ada"),
        ({"state": {"from": "pending", "to": "approved"}}, "state pending -> approved"),
        ({"tokens_per_month": {"from": 5, "to": None}}, "tokens_per_month 5 -> none"),
        ({"expires_at": {"from": None, "to": 60.0}}, "expires_at 1970-01-01T00:01:00+00:00"),
        (
            {"models": {"from": None, "to": ["a"]}, "name": {"from": None, "to": ""}},
            'models ["a"], name ""',
        ),
    ],
)
def test_change(change, text):
    """A change is told in a line: what was, if there was anything, and what became of it."""
    assert change_text(change) == text
