"""Histories as Mistral's templates take them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_worker.dialect.family.mistral_history import History, short_id

USER = {"role": "user", "content": "Time?"}
RESULT = {"role": "tool", "content": "12:00", "tool_call_id": "call_1"}
THINKS = {"type": "thinking", "thinking": "Your thoughts."}


def called(*ids, content=""):
    """Return a message with calls of these ids."""
    made = [{"id": one, "function": {"name": "now", "arguments": {}}} for one in ids]
    return {"role": "assistant", "content": content, "tool_calls": made}


def written(messages, *, thinks=False, **takes):
    """Return messages as a template gets them that takes that much."""
    return History(**takes).written(messages, thinks=thinks)


@given(first=st.text(), second=st.text())
def test_ids_have_nine_letters_and_digits(first, second):
    """The same text has the same id, and another text another."""
    ids = short_id(first), short_id(second)
    assert all(len(one) == 9 and one.isascii() and one.isalnum() for one in ids)
    assert (ids[0] == ids[1]) == (first == second)


def test_an_id_that_fits_is_kept():
    """A client may have it from a server with the same rule."""
    assert short_id("a1B2c3D4e") == "a1B2c3D4e"
    assert short_id("é1B2c3D4e") != "é1B2c3D4e"
    assert short_id("\ud800")


def test_calls_and_results_keep_their_ids_in_common():
    """Whatever ids the client sends back, a result still names its call."""
    _, call, result = written([USER, called("call_1"), RESULT])
    assert call["tool_calls"][0]["id"] == result["tool_call_id"] == short_id("call_1")


def test_a_result_without_an_id_has_one_like_all_others():
    """A template refuses what has none."""
    (result,) = written([{"role": "tool", "content": "x"}])
    assert result["tool_call_id"] == short_id("")


def test_results_stand_in_the_order_of_their_calls():
    """From tokenizer v13 on a result has no id: its place says whose it is."""
    results = [{**RESULT, "tool_call_id": one, "content": one} for one in ("b", "x", "a")]
    messages = [called("a", "b"), *results, called("b", "a"), *results]
    contents = [each["content"] for each in written(messages) if each["role"] == "tool"]
    assert contents == ["a", "b", "x", "b", "a", "x"]


def test_what_a_user_says_in_a_row_is_one_message():
    """Mistral's own library joins it."""
    answer = {"role": "assistant", "content": "Noon."}
    assert written([USER, USER, answer, answer, USER]) == [
        {"role": "user", "content": "Time?\n\nTime?"},
        answer,
        answer,
        USER,
    ]


@pytest.mark.parametrize(
    ("messages", "contents"),
    [
        ([USER], ["Time?"]),
        ([("system", "A"), USER, ("system", "B"), USER], ["Time?", "A\n\nB\n\nTime?"]),
        ([("system", "A"), USER, called("a"), RESULT], ["A\n\nTime?", "", "12:00"]),
        ([("system", "A")], ["A"]),
        ([("system", "")], []),
    ],
)
def test_system_texts_stand_in_the_last_user_message(messages, contents):
    """Up to tokenizer v3 there is no other place for them, and none may be lost."""
    messages = [
        {"role": each[0], "content": each[1]} if isinstance(each, tuple) else each
        for each in messages
    ]
    history = History(takes_systems=False)
    assert [each["content"] for each in history.with_systems(messages)] == contents
    assert History().with_systems(messages) == messages


def test_thoughts_are_chunks_of_a_content():
    """Where the template takes them; otherwise they stay what they were."""
    said = {"role": "assistant", "content": "b", "reasoning": "a", "reasoning_content": "a"}
    assert written([said]) == [said]
    (thoughtful,) = written([said], takes_thoughts=True)
    assert thoughtful == {
        "role": "assistant",
        "content": [{"type": "thinking", "thinking": "a"}, {"type": "text", "text": "b"}],
    }
    (silent,) = written([{**called("a"), "reasoning": "a"}], takes_thoughts=True)
    assert silent["content"] == [{"type": "thinking", "thinking": "a"}]
    (unthinking,) = written([{**said, "reasoning": ""}], takes_thoughts=True)
    assert unthinking["content"] == "b"


def test_text_before_calls_is_left_out_where_a_template_refuses_it():
    """Models up to tokenizer v3 have never seen both in one turn."""
    message = called("a", content="Let me see.")
    assert written([message])[0]["content"] == "Let me see."
    assert written([message], takes_text_before_calls=False)[0]["content"] == ""


@pytest.mark.parametrize(
    ("content", "json"),
    [("12 °C", '"12 °C"'), ('{"a": 1}', '{"a": 1}'), ("12", "12"), ('a"b', '"a\\"b"'), ("", '""')],
)
def test_results_are_json_where_a_template_writes_them_into_json(content, json):
    """Otherwise a text would break it."""
    result = {**RESULT, "content": content}
    assert written([result], results_are_json=True)[0]["content"] == json
    assert written([result])[0]["content"] == content


def test_contents_are_lists_where_a_template_takes_nothing_else():
    """Such a template may have images in mind."""
    (user,) = written([USER], takes_texts=False)
    assert user["content"] == [{"type": "text", "text": "Time?"}]


SYSTEM = {"role": "system", "content": "Be brief."}


@pytest.mark.parametrize(
    ("instructions", "content"),
    [
        (
            [{"type": "text", "text": "Think."}],
            "Think.\n\nBe brief.",
        ),
        (
            [{"type": "text", "text": "Like this:"}, THINKS, {"type": "text", "text": "Answer."}],
            [
                {"type": "text", "text": "Like this:"},
                THINKS,
                {"type": "text", "text": "Answer.\n\nBe brief."},
            ],
        ),
        ([THINKS], [THINKS, {"type": "text", "text": "\n\nBe brief."}]),
    ],
)
def test_instructions_to_think_stand_before_a_system_message(instructions, content):
    """Models that are asked to think need them, and their templates leave them out then."""
    takes = {"instructions": instructions, "begins_thought": "[THINK]"}
    said = written([SYSTEM, USER, SYSTEM], thinks=True, **takes)
    assert [each["content"] for each in said] == [content, "Time?", "Be brief."]
    assert written([SYSTEM, USER], thinks=False, **takes) == [SYSTEM, USER]
    assert written([USER], thinks=True, **takes) == [USER]
    own = {"role": "system", "content": "Think like this:[THINK]hm[/THINK]"}
    assert written([SYSTEM, own, USER], thinks=True, **takes) == [SYSTEM, own, USER]
