"""The blocks of a prompt, hashed."""

from hypothesis import given
from hypothesis import strategies as st

from edge.prefix_blocks import MOST_BLOCKS, of_conversation, of_prompts
from fastrun.v1.generation_pb2 import ChatMessage, Role, Tool, ToolCall

TEXTS = st.text(max_size=40).map(lambda text: text * 20)
CALLS = st.builds(ToolCall, id=st.text(max_size=3), name=st.text(max_size=5), arguments=TEXTS)
MESSAGES = st.builds(
    ChatMessage,
    role=st.sampled_from([role for role in Role.values() if role]),
    content=TEXTS | st.none(),
    reasoning=TEXTS | st.none(),
    tool_calls=st.lists(CALLS, max_size=2),
)
TOOLS = st.builds(Tool, name=st.text(max_size=5), description=TEXTS, parameters_json_schema=TEXTS)


def text_blocks(text, salt="salt"):
    return of_prompts([text], cache_salt=salt)


@given(st.lists(TOOLS, max_size=2), st.lists(MESSAGES, min_size=1, max_size=6), st.data())
def test_a_next_turn_has_all_blocks_of_the_former(tools, messages, data):
    """However a conversation goes on, its beginning is cut and hashed as before."""
    count = data.draw(st.integers(1, len(messages)))
    former = of_conversation(tools, messages[:count], cache_salt="salt")
    later = of_conversation(tools, messages, cache_salt="salt")
    assert later.hashes[: len(former.hashes)] == former.hashes
    assert later.tokens[: len(former.tokens)] == former.tokens
    assert later.prompt_tokens >= former.prompt_tokens


@given(st.integers(0, 6000), st.integers(0, 5999))
def test_texts_share_what_lies_before_their_first_difference(length, at):
    """Blocks that end before it are equal, and none after it is."""
    text = "abcdefgh" * 750
    other = text[:at] + "_" + text[at + 1 :]
    ours, theirs = text_blocks(text[:length]), text_blocks(other)
    same = [one == other for one, other in zip(ours.hashes, theirs.hashes, strict=False)]
    assert same == [tokens * 4 <= at for tokens in ours.tokens]


def test_messages_share_the_beginning_of_their_last_text():
    """A long document with another question after it is the same document."""
    document = "All that is known of the case. " * 100
    first, second = (
        of_conversation(
            [], [ChatMessage(role=Role.ROLE_USER, content=document + question)], cache_salt="s"
        )
        for question in ("Who did it?", "Why was it done, and when exactly?")
    )
    assert len(first.hashes) > 10
    assert first.hashes == second.hashes


def test_accounts_share_nothing():
    """The salt is the key of every hash, however long it is."""
    salts = ["", "one", "two", "x" * 65, "x" * 66]
    hashes = [each for salt in salts for each in text_blocks("word " * 300, salt).hashes]
    assert len(set(hashes)) == len(hashes)


def test_what_says_something_else_is_something_else():
    """The same letters in another field, role or tool make another prompt."""
    text = "letters " * 100
    conversations = [
        ([], [ChatMessage(role=Role.ROLE_USER, content=text)]),
        ([], [ChatMessage(role=Role.ROLE_SYSTEM, content=text)]),
        ([], [ChatMessage(role=Role.ROLE_USER, reasoning=text)]),
        ([], [ChatMessage(role=Role.ROLE_USER, tool_calls=[ToolCall(arguments=text)])]),
        ([Tool(name="f", description=text)], [ChatMessage(role=Role.ROLE_USER)]),
        ([Tool(name="f", parameters_json_schema=text)], [ChatMessage(role=Role.ROLE_USER)]),
    ]
    found = [of_conversation(*each, cache_salt="s").hashes[0] for each in conversations]
    found.append(text_blocks(text, "s").hashes[0])
    assert len(set(found)) == len(found)


def test_blocks_are_few_and_full():
    """At most 256 for any prompt, with growing counts; a block that is not full is left out."""
    assert text_blocks("x" * 255).hashes == ()
    assert text_blocks("x" * 256).tokens == (64,)
    assert text_blocks("x" * 511).tokens == (64,)
    long = text_blocks("x" * (3 << 20))
    assert len(long.hashes) == len(long.tokens) == MOST_BLOCKS
    assert sorted(set(long.tokens)) == list(long.tokens)
    assert all(0 <= each < 2**64 for each in long.hashes)
    assert long.prompt_tokens == (3 << 20) // 4


def test_prompts_that_differ_have_no_common_beginning_to_tell():
    """One place in the queue stands for all of them; their mean length is known."""
    blocks = of_prompts(["x" * 4000, "y" * 2000], cache_salt="s")
    assert (blocks.hashes, blocks.prompt_tokens) == ((), 750)
    assert of_prompts(["x" * 4000] * 2, cache_salt="s") == text_blocks("x" * 4000, "s")
