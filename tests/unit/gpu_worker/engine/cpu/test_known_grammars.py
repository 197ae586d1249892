"""The last grammars are remembered, and few compiled forms of them."""

import pytest

from gpu_worker.engine.cpu.known_grammars import Known, KnownGrammars
from gpu_worker.engine.grammar import Literal

A, B, C = (Literal(text) for text in "abc")


@pytest.fixture
def grammars():
    """Two grammars, and compiled forms of 10 bytes."""
    return KnownGrammars[str](count=2, ready_bytes=10)


def known(size=1, refusal=None):
    return Known("start: ", size, is_slow=False, refusal=refusal)


def test_least_recently_used_is_forgotten(grammars):
    """What is asked for stays longer, and what is forgotten has no compiled form either."""
    for grammar in (A, B):
        grammars.add(grammar, known(), "compiled")
    grammars.get(A)
    grammars.add(C, known(refusal="too large"), None)
    assert [grammars.get(grammar) is None for grammar in (A, B, C)] == [False, True, False]
    assert grammars.take(B) is None


def test_compiled_form_is_used_once(grammars):
    """Nobody gets what another one has used."""
    grammars.add(A, known(), "compiled")
    assert grammars.take(A) == "compiled"
    assert grammars.take(A) is None
    assert grammars.get(A) is not None


def test_compiled_forms_are_bounded_by_their_size(grammars):
    """The oldest are dropped, though their grammars are remembered."""
    grammars.add(A, known(size=6), "first")
    grammars.add(B, known(size=5), "second")
    assert (grammars.take(A), grammars.take(B)) == (None, "second")
    grammars.add(A, known(size=11), "too large")
    assert grammars.take(A) is None
    assert grammars.get(A) is not None
