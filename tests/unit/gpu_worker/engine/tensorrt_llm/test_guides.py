"""Grammars on their way to the engine: tried first, remembered, and in words that it knows."""

import json
from pathlib import Path

import pytest

from gpu_worker.dialect.tokenizer import JsonTokenizer
from gpu_worker.engine.grammar import Choice, Free, GrammarError, Json, Literal, Repeat, Sequence
from gpu_worker.engine.guidance.vocabulary import LibraryVocabulary
from gpu_worker.engine.protocol import EngineError
from gpu_worker.engine.tensorrt_llm import guides
from gpu_worker.engine.tensorrt_llm.guides import KNOWN_GUIDES, Guides

TOKENIZER = Path(__file__).parents[4] / "models" / "tiny" / "tokenizer.json"
BOTH = {
    "type": "object",
    "properties": {"a": {"minimum": 5}},
    "patternProperties": {"^a": {"type": "integer"}},
}


class Trial:
    """Finds out what it is told to."""

    def __init__(self):
        self.sizes = {}
        self.tried = []
        self.closed = False

    def run(self, text, *, cpu_limit_s):
        self.tried.append((text, cpu_limit_s))
        size = self.sizes.get(cpu_limit_s, 1000)
        if isinstance(size, Exception):
            raise size
        return size

    def close(self):
        self.closed = True


@pytest.fixture(scope="module")
def vocabulary():
    names = JsonTokenizer.from_file(TOKENIZER).special_tokens
    return LibraryVocabulary.read(TOKENIZER, names=names, size=1024, eos_id=2)


@pytest.fixture
def trial():
    return Trial()


@pytest.fixture
def made(vocabulary, trial):
    made = Guides(vocabulary, trial)
    yield made
    made.close()
    assert trial.closed


async def test_guides_are_llguidances_own_language(made):
    """Special tokens are named by their ids, and JSON by its schema."""
    grammar = Sequence((Free("<|im_end|>"), Json('{"type": "integer"}')))
    text = await made.text(grammar)
    assert "<[2]>" in text
    assert '"type": "integer"' in text
    assert "item_separator" not in text  # older versions take it for text


async def test_a_grammar_is_tried_once(made, trial):
    """What was found out is remembered, of the last ones."""
    first = await made.text(Literal("0"))
    assert await made.text(Literal("0")) == first
    assert len(trial.tried) == 1
    for number in range(1, KNOWN_GUIDES + 1):
        await made.text(Literal(str(number)))
    await made.text(Literal("0"))
    assert len(trial.tried) == KNOWN_GUIDES + 2


async def test_what_takes_longer_is_tried_again(made, trial):
    """In a lane of its own, with more time; and then it is enough."""
    trial.sizes[guides.QUICK_S] = None
    assert await made.text(Literal("slow"))
    assert [limit for _, limit in trial.tried] == [guides.QUICK_S, guides.SLOW_S]
    trial.sizes[guides.SLOW_S] = None
    for _ in range(2):
        with pytest.raises(GrammarError, match="too much time or memory"):
            await made.text(Literal("slower"))
    assert len(trial.tried) == 4


async def test_a_trial_that_failed_is_not_remembered(made, trial):
    """It was not the grammar's fault."""
    trial.sizes[guides.QUICK_S] = EngineError("busy")
    with pytest.raises(EngineError):
        await made.text(Literal("x"))
    trial.sizes.clear()
    assert await made.text(Literal("x"))


async def test_what_cannot_be_compiled_is_refused_by_name(made, trial):
    """Before and after it was tried."""
    with pytest.raises(GrammarError, match="contains"):
        await made.text(Json('{"contains": {}, "minContains": 2}'))
    assert not trial.tried
    for _ in range(2):
        with pytest.raises(GrammarError, match="no value fits"):
            await made.text(Json('{"type": "integer", "minimum": 5, "maximum": 3}'))


async def test_an_old_library_that_does_not_combine_properties(vocabulary, trial, monkeypatch):
    """It would allow what is forbidden, so that it is not asked."""
    assert guides.combines_properties(vocabulary)
    monkeypatch.setattr(guides, "combines_properties", lambda _: False)
    made = Guides(vocabulary, trial)
    both = Json(json.dumps({"type": "array", "items": BOTH}))
    for grammar in (both, Choice((Literal("x"), Repeat(both, 1, 2)))):
        with pytest.raises(GrammarError, match="patternProperties"):
            await made.text(grammar)
    assert await made.text(Json('{"properties": {"a": true}}'))
    made.close()


async def test_properties_and_patterns_are_combined(made):
    """Where the library can."""
    assert await made.text(Json(json.dumps(BOTH)))
