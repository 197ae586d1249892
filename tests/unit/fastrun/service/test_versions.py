import pytest

from fastrun.service.versions import together


@pytest.mark.parametrize(
    ("one", "other", "work"),
    [
        ("0.1.0", "0.1.7", True),
        ("0.1.0", "0.2.0", True),
        ("1.3.0rc1", "1.2.0", True),
        ("0.1.0", "0.3.0", False),
        ("1.0.0", "0.9.0", False),
        ("0.1.0", "", False),
        ("0.1.0", "new", False),
    ],
)
def test_together(one, other, work):
    """Versions work together if at most one minor version lies between them, either way round."""
    assert together(one, other) is work
    assert together(other, one) is work
