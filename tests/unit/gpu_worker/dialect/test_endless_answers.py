"""Answers that go on and on where a family waits for something cost the same for each token."""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_worker.dialect.chat_template import ChatTemplate
from gpu_worker.dialect.families import find
from gpu_worker.dialect.family import deepseek_dsml
from gpu_worker.dialect.profile import Profile
from gpu_worker.dialect.thinking import Thinking
from gpu_worker.dialect.tools import Tool

TEMPLATES = Path(__file__).parents[3] / "templates"
TOOL = Tool(
    "f",
    parameters={
        "properties": {
            "text": {"type": "string"},
            "count": {"type": "integer"},
            "list": {"type": "array"},
            "any": {},
        }
    },
)
LONG = 3072
MOST_HELD = 1100

# Places where what comes next decides what came before.
BEGINNINGS = {
    "qwen-3": [
        "",
        "<tool_call>",
        "<tool_call>[",
        '<tool_call>{"name": "f", "arguments": {"text": "',
    ],
    "qwen-3.5": [
        "",
        "<tool_call>",
        "<function=",
        "<function=f>",
        "<function=f><parameter=",
        *(f"<function=f><parameter={key}>" for key in ("text", "count", "any")),
        "<function=f><parameter=text>a</parameter>",
        "<function=f><parameter=text>a\n</function>",
        "<function=f></function>",
    ],
    "llama-3": [
        "",
        "<|python_tag|>",
        "<|python_tag|>f.call(",
        "<|python_tag|>f.call(text=",
        '<|python_tag|>f.call(text="a"',
        '<|python_tag|>f.call(text="a",',
        "<|python_tag|>f.call(count=",
        "<|python_tag|>f.call(list=[",
        '{"name": ',
        '{"parameters": {"',
    ],
    "mistral-v15": [
        "",
        "[TOOL_CALLS]",
        "[TOOL_CALLS][",
        "[TOOL_CALLS]f",
        "[TOOL_CALLS]f[CALL_ID]",
        "[TOOL_CALLS]f[ARGS]",
    ],
    "deepseek-v3.1": [
        "",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁call▁begin｜>f",
        "<｜tool▁call▁begin｜>f<｜tool▁sep｜>",
        "<｜tool▁call▁begin｜>f<｜tool▁sep｜>```",
        "<｜tool▁call▁begin｜>f<｜tool▁sep｜>```json",
        "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{}",
        "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜>",
    ],
    "deepseek-v3.2": [
        "",
        "<｜DSML｜",
        "<｜DSML｜function_calls>",
        '<｜DSML｜invoke name="',
        '<｜DSML｜invoke name="f">',
        '<｜DSML｜invoke name="f"><｜DSML｜parameter name="',
        '<｜DSML｜invoke name="f"></｜DSML｜invoke>',
        *(
            f'<｜DSML｜invoke name="f"><｜DSML｜parameter name="{key}" string="{is_text}">'
            for key in ("text", "count", "arguments")
            for is_text in ("true", "false")
        ),
    ],
    "gemma-4-31b-it": [
        "",
        "<|tool_call>",
        "<|tool_call>call:",
        "<|tool_call>call:f",
        "<|tool_call>call:f{",
        "<|tool_call>call:f{text",
        "<|tool_call>call:f{text:",
        "<|tool_call>call:f{text:a,",
        '<|tool_call>call:f{text:<|"|>',
        "<|tool_call>call:f{text:'",
        "<|tool_call>call:f{text:'a'",
        "<|tool_call>call:f{count:",
        "<|tool_call>call:f{list:[",
        "<|tool_call>call:f{}",
    ],
    "gpt-oss": [
        "",
        "<|start|>",
        "<|channel|>",
        "<|channel|>commentary to=functions.f",
        "<|channel|>commentary to=functions.f<|message|>",
        "<|channel|>commentary to=functions.f<|message|>{}",
        "<|channel|>final<|message|>",
    ],
}
RUNS = (" ", "a", "1", "<", "{", '"', ", ")


@functools.cache
def profile_of(name: str) -> Profile:
    """Return the profile of one of the templates, or of the one that is ours."""
    own = {"deepseek-v3.2": deepseek_dsml.TEMPLATE}
    path = own.get(name, TEMPLATES / f"{name}.jinja")
    return find(ChatTemplate(path.read_text(encoding="utf-8")))


def texts(value: Any, known: set[int]) -> Iterator[str]:
    """Yield the texts that an object keeps as one piece."""
    if isinstance(value, str):
        yield value
    if isinstance(value, str) or id(value) in known:
        return
    known.add(id(value))
    if isinstance(value, (list, tuple)):
        for each in value:
            yield from texts(each, known)
    elif type(value).__module__.startswith("gpu_worker."):
        names = [*getattr(value, "__dict__", ()), *getattr(type(value), "__slots__", ())]
        for name in names:
            yield from texts(getattr(value, name, None), known)


@pytest.mark.parametrize(
    ("name", "begin"), [(name, begin) for name, each in BEGINNINGS.items() for begin in each]
)
def test_no_text_that_is_held_grows_with_the_answer(name, begin):
    """What is held as one text, and looked at again with each token, stays short."""
    for run in RUNS:
        parser = profile_of(name).parser(
            thinking=Thinking.MAYBE, tools=[TOOL], most_calls=None, stops=["</stop>"]
        )
        parser.feed(begin)
        for character in run * (LONG // len(run)):
            parser.feed(character)
        assert max(map(len, texts(parser, set()))) <= MOST_HELD
