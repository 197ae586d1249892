"""Patterns of ECMA-262 are written in Rust's dialect, within what validators take them for."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_worker.engine.grammar import GrammarError
from gpu_worker.engine.json_schema.patterns import rust_pattern


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("^a+|(b?){2,3}?$", "^a+|(b?){2,3}?$"),
        (r"[a-z\d_-]", r"[a-z0-9\u{5f}\u{2d}]"),
        ("[]", r"[^\x00-\u{10ffff}]"),
        ("[^]", r"[\x00-\u{10ffff}]"),
        ("[[:a]", r"[\u{5b}\u{3a}a]"),
        ("[a&&b]", r"[a\u{26}\u{26}b]"),
        (r"[\b]", r"[\u{8}]"),
        (r"[+--]", r"[\u{2b}-\u{2d}]"),
        (r"[a-\d]", r"[a\u{2d}0-9]"),
        (".", r"[^\n\r\u2028\u2029]"),
        (r"\d\D", r"[0-9][[^\p{Nd}]]"),
        (r"[^\d]", r"[^\p{Nd}]"),
        (r"[^\D]", r"[^[^0-9]]"),
        (r"\p{Lu}[\P{L}]", r"[\p{Lu}][\P{L}]"),
        (r"(?<year>a)(?P<day>b)(?:c)", "(?:a)(?:b)(?:c)"),
        (r"(?=a)(?<!b)\b\1\k", r"(?=a)(?<!b)\b\1\k"),
        (r"\t\n\0\cA", r"\u{9}\u{a}\u{0}\u{1}"),
        (r"\x41\u0042\u{1f600}\ud83d\ude00", r"AB\u{1f600}\u{1f600}"),
        (r"\/\-\$\.", r"\u{2f}\u{2d}\u{24}\u{2e}"),
        ("{x} }]", r"\u{7b}x\u{7d}\u{20}\u{7d}\u{5d}"),
        ("é猫", "é猫"),
    ],
)
def test_written_anew(pattern: str, expected: str):
    """Whatever is special in one of the dialects only is said without it."""
    assert rust_pattern(pattern) == expected


@pytest.mark.parametrize(
    ("pattern", "match"),
    [
        (r"\A", "escape"),
        (r"[\z]", "escape"),
        (r"\07", "escape"),
        (r"\c1", "escape"),
        ("a\\", "escape"),
        (r"\xg", "escape"),
        (r"\p{", "escape"),
        ("[a", "not closed"),
        ("[\\]", "not closed"),
        ("a{,3}", "0,"),
        (r"\ud800", "no character"),
        (r"\u{110000}", "no character"),
    ],
)
def test_refused(pattern: str, match: str):
    """What ECMA-262 does not know, or what Python takes otherwise, is refused."""
    with pytest.raises(GrammarError, match=match):
        rust_pattern(pattern)


@given(st.text("ab01 -_\\dDwWsS[]^.|()?*+{},$xué", max_size=12))
def test_any_text(pattern: str):
    """Whatever is written is written or refused; what stands for itself in Python still does."""
    try:
        written = rust_pattern(pattern)
    except GrammarError:
        return
    assert not re.search(r"\[\[:|&&|--|~~", written)
