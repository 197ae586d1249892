"""Calls and their results in Gemma's own shape."""

from gpu_worker.dialect.family.gemma_history import history

USER = {"role": "user", "content": "Hi"}


def assistant(content, *calls, **fields):
    """Answer, with calls as id and name."""
    made = [{"id": at, "function": {"name": name, "arguments": {}}} for at, name in calls]
    return {"role": "assistant", "content": content, "tool_calls": made, **fields}


def tool(content, **fields):
    """Return a result."""
    return {"role": "tool", "content": content, **fields}


def results(*messages):
    """Return the results that stand with each message."""
    return [
        [(each["name"], each["response"]) for each in message.get("tool_responses", ())]
        for message in history(messages, splits=False)
    ]


def test_results_are_with_the_calls():
    """By the calls' ids, in whatever order they come."""
    caller = assistant("", ("1", "f"), ("2", "g"))
    assert results(USER, caller, tool("b", tool_call_id="2"), tool("a", tool_call_id="1")) == [
        [],
        [("g", "b"), ("f", "a")],
    ]


def test_results_without_ids_come_in_the_order_of_the_calls():
    """A name of their own counts; what belongs to no call is of a function that is not known."""
    caller = assistant("", ("", "f"), ("", "g"))
    assert results(
        caller, tool("a"), tool("b", tool_call_id="?"), tool("c"), tool("d", name="h")
    ) == [[("f", "a"), ("g", "b"), ("unknown", "c"), ("h", "d")]]


def test_results_without_a_call_are_not_lost():
    """They stand in a message of the model's own."""
    assert results(USER, tool("a"), tool("b"), USER) == [
        [],
        [("unknown", "a"), ("unknown", "b")],
        [],
    ]


def test_a_result_stays_the_text_that_it_is():
    """llama.cpp PR#21522: also where it is JSON, whose line breaks and order may be what counts."""
    content = '{\n  "b": 1.10,\n  "a": []\n}'
    assert results(assistant("", ("1", "f")), tool(content)) == [[("f", content)]]


def test_what_was_said_before_a_call_is_a_message_of_its_own():
    """If the template goes on with the turn; the thought comes first."""
    caller = assistant("Let me look.", ("1", "f"), reasoning="r")
    said, called = history([caller], splits=True)
    assert said == {"role": "assistant", "content": "Let me look.", "reasoning": "r"}
    assert called == {"role": "assistant", "content": "", "tool_calls": caller["tool_calls"]}
    assert history([caller], splits=False) == [caller]
    silent = assistant("", ("1", "f"), reasoning="r")
    assert history([silent], splits=True) == [silent]


def test_an_answer_stands_with_the_results():
    """In one message, for templates that would begin another turn."""
    caller, answer = assistant("", ("1", "f")), {"role": "assistant", "content": "Sunny."}
    (turn,) = history([caller, tool("a", tool_call_id="1"), answer], splits=False)
    assert turn == {
        **caller,
        "content": "Sunny.",
        "tool_responses": [{"name": "f", "response": "a"}],
    }
    assert history([caller, tool("a", tool_call_id="1"), answer], splits=True)[1:] == [answer]
    assert history([caller, answer], splits=False) == [caller, answer]


def test_the_conversation_itself_is_left_alone():
    """What is added is added to copies."""
    messages = [assistant("", ("1", "f")), tool("a", tool_call_id="1")]
    history(messages, splits=True)
    assert "tool_responses" not in messages[0]
