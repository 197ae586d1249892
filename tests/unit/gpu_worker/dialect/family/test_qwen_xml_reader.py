"""Answers with calls between tags, in any pieces."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transcripts import Told, Transcripts

from gpu_worker.dialect.family.qwen_xml import QwenXmlCalls
from gpu_worker.dialect.profile import Profile
from gpu_worker.dialect.template_traits import Traits
from gpu_worker.dialect.thinking import THINK_TAGS, Thinking
from gpu_worker.dialect.tools import Tool

PROPERTIES = {
    "path": {"type": "string"},
    "text": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "mode": {"type": "integer"},
    "lines": {"type": "array"},
    "more": {},
}
WRITE = Tool("write_file", parameters={"type": "object", "properties": PROPERTIES})
NOW = Tool("now")
PROFILE = Profile(family="qwen_xml", traits=Traits(), calls=QwenXmlCalls(), thoughts=THINK_TAGS)
answers = Transcripts(PROFILE, [WRITE, NOW])


def call(name="now", *arguments):
    """Write a call as the templates do."""
    inside = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments)
    return f"<tool_call>\n<function={name}>\n{inside}</function>\n</tool_call>"


def written(value):
    """Write a value as Qwen 3.6's template does."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


# Texts with all that tags are made of, and no end of a value that is followed as one would be.
words = st.text(alphabet='ab {}"\\é🐱\n', max_size=8)
parts = st.sampled_from(
    ["a", "\n", " ", "<", "</", "</parameter>.", "</par", "\n</function>\n.", "<parameter", "é🐱"]
)
values = {
    "path": st.lists(parts, max_size=8).map("".join),
    "text": st.none() | words.filter(lambda text: text.strip().lower() not in ("null", "none")),
    "mode": st.integers(),
    "lines": st.lists(st.integers() | st.text(alphabet='a"\\{}[]<>/é🐱\n'), max_size=3),
    "more": st.booleans() | st.just("Oslo") | st.integers(),
}
arguments = st.fixed_dictionaries({}, optional=values)
calls = st.lists(st.tuples(st.just("write_file"), arguments) | st.just(("now", {})), max_size=3)
cuts = st.lists(st.integers(0, 1000), max_size=8)


@settings(max_examples=60)
@given(
    thought=st.none() | words,
    content=words,
    calls=calls,
    opened=st.booleans(),
    cuts=cuts,
    died_at=st.integers(0, 1000),
    cut=st.booleans(),
    markers_are_tokens=st.booleans(),
)
def test_a_transcript_is_taken_apart(
    thought, content, calls, opened, cuts, died_at, cut, markers_are_tokens
):
    """Thought, content and calls as models write them come out as they were put in."""
    text = "" if thought is None else f"\n{thought}\n</think>\n\n"
    text = text if opened or thought is None else "<think>" + text
    text += (
        content
        + "\n"
        + "\n".join(
            call(name, *((key, written(value)) for key, value in given.items()))
            for name, given in calls
        )
    )
    told = answers.check(
        text,
        cuts=cuts,
        died_at=died_at,
        cut=cut,
        markers_are_tokens=markers_are_tokens,
        thinking=Thinking.OPEN if opened and thought is not None else Thinking.MAYBE,
    )
    said = content + "\n"
    said = said if thought is None else said.lstrip()
    said = said.rstrip() if calls else said
    assert told.values() == (said, (thought or "").strip(), calls)
    assert all(complete for *_, complete in told.calls)


fragments = st.sampled_from(
    [
        *["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_call>\n<function=now>\n"],
        *["<function=", "<function=write_file>", "<function=nope>", "now>", "</function>", "\n"],
        *[
            "<parameter=path>\n",
            "<parameter=mode>",
            "<parameter=",
            "</parameter>",
            "\n</parameter>",
        ],
        *[
            "<",
            "</",
            "<f",
            "</p",
            "</func",
            "<param",
            ">",
            "text",
            "12",
            "é🐱",
            " ",
            '"',
            "\\",
            "{",
        ],
        *[call(), call("write_file", ("path", "a"), ("mode", "12")), "STOP", "ST", "nul", "path"],
    ]
)
soups = st.lists(fragments, max_size=14).map("".join)


@settings(max_examples=150)
@given(
    text=soups,
    cuts=cuts,
    died_at=st.integers(0, 200),
    cut=st.booleans(),
    markers_are_tokens=st.booleans(),
    thinking=st.sampled_from(Thinking),
    tools=st.sampled_from([None, []]),
    most_calls=st.sampled_from([None, 1]),
    stops=st.sampled_from([(), ("STOP",), ("\n", "text"), ("<function",), ("</th", "a")]),
)
def test_what_comes_out_depends_on_the_text_alone(text, cuts, died_at, **options):
    """Whatever a model writes, however it is cut; and arguments are JSON, once complete."""
    told = answers.check(text, cuts=cuts, died_at=died_at, **options)
    for name, written, complete in told.calls:
        assert name in ("now", "write_file")
        assert not complete or isinstance(json.loads(written), dict)
    assert options["cut"] or all(complete for *_, complete in told.calls)


def read(text, thinking=Thinking.NO, **options):
    """Read an answer, also byte by byte."""
    return answers.check(text, cuts=range(0, 900, 3), died_at=31, thinking=thinking, **options)


HEAD, TAIL = "<tool_call>\n<function=write_file>\n", "</function>\n</tool_call>"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("<parameter=path>\n\n</parameter>\n", {"path": ""}),
        ("<parameter=path>\n</parameter>\n", {"path": ""}),
        ("<parameter=path></parameter>", {"path": ""}),
        ("<parameter=path>a</parameter>", {"path": "a"}),
        ("<parameter=path>\n\na\n\n</parameter>\n", {"path": "\na\n"}),
        ("<parameter=path>\n  a \n</parameter>\n", {"path": "  a "}),
        ("<parameter=path>\n012\n</parameter>\n", {"path": "012"}),
        ("<parameter=path>\nnull\n</parameter>\n", {"path": "null"}),
        ('<parameter=path>\nprint("</p>")\n</parameter>\n', {"path": 'print("</p>")'}),
        ("<parameter=path\na\n</parameter>\n", {"path": "a"}),
        ("<parameter=text>\nNone\n</parameter>\n", {"text": None}),
        ("<parameter=text>\n12\n</parameter>\n", {"text": "12"}),
        ("<parameter=mode>\n12\n</parameter>\n", {"mode": 12}),
        ("<parameter=mode>\ntwelve\n</parameter>\n", {"mode": "twelve"}),
        ("<parameter=lines>\n['a', True]\n</parameter>\n", {"lines": ["a", True]}),
        ("<parameter=more>\nTrue\n</parameter>\n", {"more": True}),
        ('<parameter=other>\n{"a": 1}\n</parameter>\n', {"other": {"a": 1}}),
        ('<parameter=a"b>\nx\n</parameter>\n', {'a"b': "x"}),
        ("<parameter=path>\na\n</parameter>\n<parameter=path>\nb\n</parameter>\n", {"path": "a"}),
        ("\n", {}),
        ("", {}),
    ],
)
def test_arguments(arguments, expected):
    """Their types are the schema's; one line break on either side is not part of a value."""
    assert read(HEAD + arguments + TAIL).values() == ("", "", [("write_file", expected)])


MODE = "<parameter=mode>\n7\n</parameter>\n"
BOTH = {"path": "a", "mode": 7}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            f"<function=write_file>\n<parameter=path>\na\n</parameter>\n{MODE}{TAIL}",
            BOTH,
            id="tool_call, vllm#22975",
        ),
        pytest.param(f"{HEAD}<parameter=path>\na\n{MODE}{TAIL}", BOTH, id="parameter"),
        pytest.param(f"{HEAD}{MODE}<parameter=path>\na\n{TAIL}", BOTH, id="last parameter"),
        pytest.param(f"{HEAD}{MODE}<parameter=path>\na\n</tool_call>", BOTH, id="two ends"),
        pytest.param(
            f"{HEAD}<parameter=path>\na\n</parameter>\n{MODE}</tool_call>", BOTH, id="function"
        ),
        pytest.param(
            f"{HEAD}<parameter=path>\na\n</parameter>\n{MODE}</function>\n", BOTH, id="call"
        ),
        pytest.param(f"{HEAD}<parameter=path>\na\n</parameter>\n{MODE}", BOTH, id="both ends"),
        pytest.param(f"{HEAD}{MODE}<parameter=path>\na\n</function>\n", BOTH, id="other ends"),
        pytest.param(f"{HEAD}{MODE}<parameter=path>\na", BOTH, id="all ends"),
        pytest.param(f"{HEAD}{MODE}<parameter=path>", {"mode": 7, "path": ""}, id="value"),
        pytest.param(f"{HEAD}{MODE}<parameter=pa", {"mode": 7}, id="half a parameter"),
        pytest.param("<tool_call><function=write_file>", {}, id="everything"),
    ],
)
def test_missing_tags(text, expected):
    """Each tag but the function's may be missing, and the text may end anywhere."""
    assert read(text).values() == ("", "", [("write_file", expected)])


def test_calls_follow_calls_whose_ends_are_missing():
    """The next one begins where the last one was left."""
    text = f"{HEAD}{MODE}<tool_call>\n<function=now>\n</function>\n<function=now>\n{TAIL}\nDone."
    assert read(text).values() == (
        "Done.",
        "",
        [("write_file", {"mode": 7}), ("now", {}), ("now", {})],
    )


@pytest.mark.parametrize(
    "text",
    [
        "use <tool_call> tags",
        "use <function=now> for that",
        "<tool_call>\n<function=now> is what I write",
        f"<tool_call>\n<function=nope>\n{TAIL}",
        f"<tool_call>\n<function=NOW>\n{TAIL}",
        f'<tool_call>\n{{"name": "now"}}\n{TAIL}',
        '<function=write_file>{"path": "a"}</function>',
        "<tool_call>",
        "a <",
        "<parameter=path>\na\n</parameter>",
        "<function=no",
    ],
)
@pytest.mark.parametrize("thinking", Thinking)
def test_what_is_no_call_is_text(text, thinking):
    """False starts come out, in a thought as in content, and so do calls of unknown functions."""
    content, reasoning, calls = read(text, thinking)
    assert content + reasoning == text
    assert bool(reasoning) is (thinking is Thinking.OPEN)
    assert not calls


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(f"need it\n{call()}", ("", "need it", [("now", {})]), id="vllm#39056"),
        pytest.param(
            "a <tool_call> tag\n<tool_call>\nso\n</think>\n\nb",
            ("b", "a <tool_call> tag\n<tool_call>\nso", []),
            id="vllm#39056 prose",
        ),
        pytest.param(
            f"need it\n{call()}\n</think>\n\nb", ("b", "need it", [("now", {})]), id="vllm#39697"
        ),
        pytest.param(
            f"a\n</think>\n\n{call()}\n<think>\nb\n</think>\n\nc",
            ("c", "a\n\nb", [("now", {})]),
            id="thought after a call",
        ),
        pytest.param("a", ("", "a", []), id="no end of the thought"),
    ],
)
def test_calls_and_thoughts(text, expected):
    """A call ends a thought that is still open, and a mention of one does not."""
    assert read(text, Thinking.OPEN).values() == expected


def test_an_end_tag_within_a_value_is_text():
    """Only what comes after values ends one (vllm PR#33965)."""
    value = "<a>\n</parameter>\n<b>\n</function>\n</c> </parameter></parameter>"
    told = read(call("write_file", ("path", value), ("mode", 7)))
    assert told.values() == ("", "", [("write_file", {"path": value, "mode": 7})])


def test_a_text_is_streamed_as_it_comes():
    """One character behind it, for that may be the line break at its end (vllm#30439, #36116)."""
    answer, told = answers.answer(thinking=Thinking.NO), Told()
    for key in ("path", "text", "more"):
        head = f"{HEAD}<parameter={key}>\n"
        answer, told = answers.answer(thinking=Thinking.NO), Told()
        told = told.add(answer.feed(answers.token_ids(head)))
        assert told.calls == (("write_file", f'{{"{key}": ' + '"' * (key == "path"), False),)
        begun = f'{{"{key}": "'
        for at, character in enumerate(text := 'Say "hé🐱"\n\n  < b </p', start=1):
            told = told.add(answer.feed(answers.token_ids(character)))
            sent = told.calls[0][1].removeprefix(begun)
            waits = len(text[:at]) - len(text[:at].rstrip("</p").removesuffix("\n"))
            assert json.loads(f'"{sent}"') == text[: at - waits]


def test_a_name_comes_once():
    """No later piece has one."""
    text = call("write_file", ("path", "a"), ("mode", 7))
    answer = answers.answer(thinking=Thinking.NO)
    pieces = [piece for at in answers.token_ids(text) for piece in answer.feed([at]).calls]
    assert [piece.name for piece in pieces if piece.name] == ["write_file"]
    assert pieces[0].name
    assert [piece.complete for piece in pieces].count(True) == 1


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("Look:\n<tool_c", "Look:", ()),
        ("Look:\n<tool_call>\n<function=wri", "Look:", ()),
        ("Look:\n<tool_call>\n<function=now>\n", "Look:", ()),
        ("Look:\n<function=now>\n<", "Look:", ()),
        (f"Look:\n{HEAD}<param", "Look:", ()),
        (f"Look:\n{HEAD}<parameter=pa", "Look:", (("write_file", "", False),)),
        (f"Look:\n{HEAD}<parameter=path>", "Look:", (("write_file", '{"path": "', False),)),
        (
            f"Look:\n{HEAD}<parameter=path>\na\n</para",
            "Look:",
            (("write_file", '{"path": "a', False),),
        ),
        (
            f"{HEAD}<parameter=path>\na\n</parameter>\n",
            "",
            (("write_file", '{"path": "a', False),),
        ),
        (f"{HEAD}<parameter=mode>\n1", "", (("write_file", '{"mode": ', False),)),
        (f"{HEAD}{MODE}</func", "", (("write_file", '{"mode": ', False),)),
        (f"{HEAD}{MODE}</function>\n</t", "", (("write_file", '{"mode": 7}', True),)),
    ],
)
def test_max_tokens_cuts_a_call_anywhere(text, content, calls):
    """No half tag is shown, and of the arguments only what was clear."""
    assert read(text, cut=True) == Told(content, "", calls)
