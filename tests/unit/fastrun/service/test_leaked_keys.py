"""What the security page tells secret scanners is how keys are."""

import re
from pathlib import Path
from random import Random

import pytest

from fastrun.service import api_key

PAGE = Path(__file__).parents[4] / "docs" / "operating" / "security.md"
RANDOM = Random(1)


@pytest.fixture(scope="module")
def section():
    return PAGE.read_text(encoding="utf-8").partition("## Leaked keys")[2]


def test_expression(section):
    """The expression on the page is the one that keys match."""
    assert f"\n{api_key.PATTERN}\n" in section


def test_checksum(section):
    """The page's function takes every key, and no key with another character anywhere."""
    (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    names = {}
    exec(code, names)
    for _ in range(50):
        key = api_key.generate(RANDOM)
        assert names["is_key"](key)
        place = RANDOM.randrange(3, len(key))
        other = RANDOM.choice(api_key.ALPHABET.replace(key[place], ""))
        wrong = key[:place] + other + key[place + 1 :]
        assert not names["is_key"](wrong)
        assert not api_key.well_formed(wrong)
