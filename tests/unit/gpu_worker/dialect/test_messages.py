"""What becomes of messages for each thing that a template cannot take."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_worker.dialect.messages import within
from gpu_worker.dialect.template_traits import Calls, Systems, Traits


def system(text):
    return {"role": "system", "content": text}


def user(text):
    return {"role": "user", "content": text}


def assistant(text, *calls, **fields):
    made = {"role": "assistant", "content": text, **fields}
    return {**made, "tool_calls": list(calls)} if calls else made


def call(name, number="", arguments=None):
    function = {"name": name, "arguments": {} if arguments is None else arguments}
    return {"id": number or f"call_{name}", "type": "function", "function": function}


def result(text, number, **fields):
    return {"role": "tool", "content": text, "tool_call_id": number, **fields}


def test_what_a_template_takes_is_left_as_it_is():
    """Most templates take everything."""
    messages = [system("s"), user("u"), assistant("a"), system("t"), user("v")]
    assert within(Traits(), messages) == messages


def test_results_have_the_name_of_their_function():
    """It is known by the call's id, of several the last; a name that is given stays."""
    messages = [
        assistant("", call("f", "1"), call("g", "2")),
        result("a", "2"),
        result("b", "1", name="own"),
        result("c", "3"),
        assistant("", call("h", "1")),
        result("d", "1"),
        {"role": "tool", "content": "e"},
    ]
    names = [each.get("name") for each in within(Traits(), messages) if each["role"] == "tool"]
    assert names == ["g", "own", None, "h", None]


FIRST, NOWHERE = Traits(systems=Systems.FIRST), Traits(systems=Systems.NOWHERE)


@pytest.mark.parametrize(
    ("traits", "messages", "expected"),
    [
        (FIRST, [user("u"), system("s")], [system("s"), user("u")]),
        (FIRST, [system("s"), user("u"), system("t")], [system("s\n\nt"), user("u")]),
        (FIRST, [system("s"), system("")], [user("s")]),
        (FIRST, [system(""), user("u")], [user("u")]),
        (NOWHERE, [system("s"), user("u"), user("v")], [user("s\n\nu"), user("v")]),
        (NOWHERE, [assistant("a"), user("u"), system("s")], [assistant("a"), user("s\n\nu")]),
        (NOWHERE, [system("s"), assistant("a")], [user("s"), assistant("a")]),
        (NOWHERE, [system("s"), user("")], [user("s")]),
        (NOWHERE, [system("s"), system("t")], [user("s\n\nt")]),
    ],
)
def test_system_messages_find_a_place(traits, messages, expected):
    """Joined, in front, or as the user's words where there is no other place."""
    assert within(traits, messages) == expected


def test_what_is_said_beside_calls_is_said_before_them():
    """A thought stays in front; calls without content are left alone."""
    messages = [
        assistant("look", call("f"), reasoning="hm", reasoning_content="hm"),
        result("r", "call_f", name="f"),
        assistant("", call("g"), reasoning="so"),
    ]
    assert within(Traits(calls_have_content=False), messages) == [
        assistant("look", reasoning="hm", reasoning_content="hm"),
        assistant("", call("f")),
        *messages[1:],
    ]


def test_calls_stand_alone_with_their_results():
    """Whatever order results came in; those that belong to no call come last."""
    messages = [
        user("u"),
        assistant("look", call("f"), call("g"), reasoning="hm"),
        result("other", "?"),
        result("rg", "call_g", name="g"),
        result("rf", "call_f", name="f"),
        assistant("done"),
    ]
    assert within(Traits(calls=Calls.ALONE), messages) == [
        user("u"),
        assistant("look", call("f"), reasoning="hm"),
        result("rf", "call_f", name="f"),
        assistant("", call("g")),
        result("rg", "call_g", name="g"),
        result("other", "?"),
        assistant("done"),
    ]


def test_calls_without_results_stand_alone_as_well():
    """A conversation may go on without them."""
    messages = [assistant("", call("f", "1"), call("f", "1")), result("r", "1", name="f")]
    first, answer, second = within(Traits(calls=Calls.ALONE), messages)
    assert (first, second) == (assistant("", call("f", "1")),) * 2
    assert answer == messages[1]


ALTERNATING = Traits(turns_alternate=True)


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([user("u"), user("v"), assistant("a")], [user("u\n\nv"), assistant("a")]),
        (
            [user("u"), assistant("a", reasoning="x"), assistant("b", reasoning="y")],
            [user("u"), assistant("a\n\nb", reasoning="x\n\ny")],
        ),
        (
            [user("u"), assistant("look"), assistant("", call("f")), assistant("done")],
            [user("u"), assistant("", call("f")), assistant("look\n\ndone")],
        ),
        (
            [user("u"), assistant("look", call("f")), assistant("done")],
            [user("u"), assistant("look", call("f")), assistant("done")],
        ),
        (
            [user("u"), assistant("", call("f")), user("v")],
            [user("u"), assistant("", call("f")), user("v")],
        ),
        ([system("s"), user("u"), user("")], [system("s"), user("u")]),
    ],
)
def test_turns_alternate(messages, expected):
    """What one says in a row is joined; a user's words are not moved over calls."""
    assert within(ALTERNATING, messages) == expected


def test_arguments_become_text():
    """As JSON, in which letters of all languages stand for themselves; text stays as it is."""
    messages = [assistant("", call("f", arguments={"a": "é"}), call("g", arguments="{broken"))]
    (message,) = within(Traits(arguments_are_text=True), messages)
    assert [each["function"]["arguments"] for each in message["tool_calls"]] == [
        '{"a": "é"}',
        "{broken",
    ]


def test_contents_become_parts():
    """After all else, which looks at texts."""
    traits = Traits(contents_are_parts=True, systems=Systems.NOWHERE)
    assert within(traits, [system("s"), user("u")]) == [
        {"role": "user", "content": [{"type": "text", "text": "s\n\nu"}]}
    ]


calls = st.lists(st.sampled_from("fgh").map(call), min_size=1, max_size=3)
conversations = st.lists(
    st.one_of(
        st.just("system").map(system),
        st.just("user").map(user),
        st.builds(lambda made: assistant("said", *made), calls | st.just([])),
        st.sampled_from("fgh?").map(lambda name: result("result", f"call_{name}")),
    ),
    max_size=8,
)
anything = st.builds(
    Traits,
    systems=st.sampled_from(Systems),
    calls=st.sampled_from(Calls),
    calls_have_content=st.booleans(),
    arguments_are_text=st.booleans(),
    turns_alternate=st.booleans(),
    contents_are_parts=st.booleans(),
)


@given(conversation=conversations, traits=anything)
def test_nothing_is_lost_or_said_twice(conversation, traits):
    """Of any conversation, for any template: the same words, calls and results."""
    numbered = [
        {**message, "content": f"{message['content']}-{place};"}
        for place, message in enumerate(conversation)
    ]
    written = within(traits, numbered)
    text = str([message["content"] for message in written])
    for message in numbered:
        assert text.count(message["content"]) == 1

    def called(messages):
        made = [each for message in messages for each in message.get("tool_calls", ())]
        return [each["function"]["name"] for each in made]

    assert called(written) == called(numbered)
    results = [each["tool_call_id"] for each in numbered if each["role"] == "tool"]
    assert sorted(results) == sorted(m["tool_call_id"] for m in written if m["role"] == "tool")
