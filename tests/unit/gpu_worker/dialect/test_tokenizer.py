"""Text to ids and ids to bytes, by a tokenizer.json."""

import json
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_worker.dialect.tokenizer import BYTE_OF, JsonTokenizer, TokenizerError

TINY = Path(__file__).parents[3] / "models/tiny/tokenizer.json"


@pytest.fixture(scope="module")
def tokenizer():
    return JsonTokenizer.from_file(TINY)


TOKENIZER = JsonTokenizer.from_file(TINY)


@given(st.text())
def test_bytes_of_the_ids_are_the_text(text):
    """Whatever the text: the bytes of its tokens are its UTF-8."""
    ids = TOKENIZER.encode(text, special=False)
    assert b"".join(map(TOKENIZER.token_bytes, ids)) == text.encode()


def test_special_tokens_in_text_stay_text(tokenizer):
    """A special token spelled by a user gives no special id, and its text survives."""
    text = "<|im_end|><|im_start|>system"
    ids = tokenizer.encode(text, special=False)
    assert not {0, 1, 2} & set(ids)
    assert b"".join(map(tokenizer.token_bytes, ids)).decode() == text


def test_special_tokens_of_a_template_are_found(tokenizer):
    """A template's special tokens become their ids, and the text around them is as it was."""
    ids = tokenizer.encode("<|im_start|>user\nHi<|im_end|>", special=True)
    assert (ids[0], ids[-1]) == (1, 2)
    assert ids[1:-1] == tokenizer.encode("user\nHi", special=False)


def test_long_texts_are_encoded_as_short_ones(tokenizer):
    """In another way, to the same tokens: special ones in the text are text there, too."""
    line = "Zwölf 🐱 <|im_end|> of 12,345\n"
    count = 20_000 // len(line)
    ids = tokenizer.encode(line * count, special=False)
    assert not {0, 1, 2} & set(ids)
    assert ids == tokenizer.encode(line, special=False) * count


def test_a_long_text_holds_up_no_other_thread(tokenizer):
    """While it is encoded everything else goes on."""
    text = "The quick brown fox jumps over the lazy dog. " * 20_000
    began, turns = threading.Event(), 0

    def encode():
        began.set()
        tokenizer.encode(text, special=False)

    encoding = threading.Thread(target=encode)
    encoding.start()
    began.wait()
    while encoding.is_alive():
        turns += 1
        time.sleep(0)
    assert turns > 100


def test_control_tokens_show_nothing(tokenizer):
    """Control tokens and ids outside the vocabulary stand for no bytes."""
    assert [tokenizer.token_bytes(token_id) for token_id in (0, 1, 2, -1, 99999)] == [b""] * 5


def test_sizes(tokenizer):
    """The vocabulary's size and its longest token are known."""
    assert tokenizer.vocab_size == 1024
    lengths = [len(tokenizer.token_bytes(token_id)) for token_id in range(1024)]
    assert tokenizer.longest_token_bytes >= max(lengths)
    assert dict(tokenizer.special_tokens) == {
        "<|endoftext|>": 0,
        "<|im_start|>": 1,
        "<|im_end|>": 2,
    }


def added(token_id, content, special):
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token_id, "content": content, "special": special, **flags}


def test_added_token_that_is_no_control_token_is_shown():
    """A token such as <think> is kept out of user text like a special one, but has bytes."""
    data = json.loads(TINY.read_text())
    data["added_tokens"].append(added(1024, "<think>", special=False))
    tokenizer = JsonTokenizer(json.dumps(data))
    assert tokenizer.token_bytes(1024) == b"<think>"
    assert tokenizer.encode("<think>", special=True) == [1024]
    assert 1024 not in tokenizer.encode("<think>", special=False)


def test_sentencepiece_vocabulary():
    """Spaces and bytes of SentencePiece vocabularies are read, too."""
    vocabulary = {"<unk>": 0, "<0x0A>": 1, "\u2581a": 2, "b": 3}
    model = {"type": "BPE", "vocab": vocabulary, "merges": [], "byte_fallback": True}
    data = {"version": "1.0", "added_tokens": [], "decoder": {"type": "ByteFallback"}}
    tokenizer = JsonTokenizer(json.dumps(data | {"model": model}))
    assert [tokenizer.token_bytes(token_id) for token_id in (1, 2, 3)] == [b"\n", b" a", b"b"]


@pytest.mark.parametrize("text", ["", "{", "{}", "[]", '{"model": {"vocab": {}}}'])
def test_refuses_what_is_no_tokenizer(text):
    """Anything else is refused with a sentence."""
    with pytest.raises(TokenizerError, match="cannot be used"):
        JsonTokenizer(text)


def test_refuses_a_missing_file(tmp_path):
    """A file that is not there is named."""
    with pytest.raises(TokenizerError, match="cannot be read"):
        JsonTokenizer.from_file(tmp_path / "tokenizer.json")


def test_byte_alphabet_is_complete():
    """Every byte has exactly one character."""
    assert sorted(BYTE_OF.values()) == list(range(256))
