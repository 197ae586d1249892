"""The grammar that an answer is held to."""

from collections.abc import Sequence

from gpu_worker.dialect.calls import CallFormat
from gpu_worker.dialect.thinking import Thinking, ThoughtMarkers
from gpu_worker.dialect.tools import Tool
from gpu_worker.engine.grammar import Choice, Free, Grammar, Json, Literal
from gpu_worker.engine.grammar import Sequence as InTurn


def constraint(
    *,
    schema: str | None,
    calls: CallFormat,
    tools: Sequence[Tool],
    forced: bool,
    several: bool,
) -> Grammar | None:
    """Return what the answer may be, after its thought; None for anything.

    Where the model may call tools and its content has to be JSON, the answer is the one or the
    other.

    Args:
        schema: of the content.
        calls: how calls are written.
        tools: that may be called.
        forced: at least one has to be.
        several: more than one call may be made.
    """
    if forced:
        return calls.grammar(tools, several=several)
    if schema is None:
        return None
    if tools:
        return Choice((calls.grammar(tools, several=several), Json(schema)))
    return Json(schema)


def after_thought(
    answer: Grammar, *, thoughts: ThoughtMarkers | None, thinking: Thinking
) -> Grammar:
    """Return the grammar of an answer and what may be thought before it."""
    if thoughts is None or thinking is Thinking.NO:
        return answer
    after = (Literal(thoughts.after),) if thoughts.after else ()
    rest = (Free(thoughts.end), *after, answer)
    if thinking is Thinking.OPEN:
        return InTurn(rest)
    return Choice((InTurn((Literal(thoughts.begin), *rest)), answer))
