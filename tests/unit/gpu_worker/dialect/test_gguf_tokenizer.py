"""Rebuilding a tokenizer.json from a GGUF file's metadata."""

from pathlib import Path

import pytest

from gpu_worker.dialect.gguf_tokenizer import tokenizer_json
from gpu_worker.dialect.tokenizer import BYTE_OF, JsonTokenizer, TokenizerError
from gpu_worker.engine.cpu.gguf import read_gguf

TINY = Path(__file__).parents[3] / "models/tiny"
SAMPLE = "Hello wörld, it's 2026!\n\n  def f(x):\tpass\r\n<|im_end|> こんにちは 👋🏽 ½ ٣٤"


def metadata(pre, **changes):
    """A vocabulary of single bytes, some words and a few special tokens."""
    merges = ["1 2", "12 3", "' s", "Ġ a", "a b"]
    words = ["12", "123", "'s", "Ġa", "ab", "<|end|>", "<think>", "abc"]
    tokens = [*BYTE_OF, *words]
    types = [1] * len(tokens)
    types[tokens.index("<|end|>")] = 3
    types[tokens.index("<think>")] = 4
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
        **changes,
    }


def pieces(pre, text):
    tokenizer = JsonTokenizer(tokenizer_json(metadata(pre)))
    return [
        tokenizer.token_bytes(token_id).decode()
        for token_id in tokenizer.encode(text, special=False)
    ]


def test_equals_the_original():
    """The tiny model's tokenizer comes out of its GGUF file as it went in."""
    rebuilt = JsonTokenizer(tokenizer_json(read_gguf(TINY / "tiny.gguf").metadata))
    original = JsonTokenizer.from_file(TINY / "tokenizer.json")
    for special in (True, False):
        assert rebuilt.encode(SAMPLE, special=special) == original.encode(SAMPLE, special=special)
    assert rebuilt.special_tokens == original.special_tokens


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("gpt-2", ["123", "4"]),
        ("smollm", ["1", "2", "3", "4"]),
        ("qwen2", ["1", "2", "3", "4"]),
        ("llama-bpe", ["123", "4"]),
    ],
)
def test_digits(pre, expected):
    """Families differ in how they cut numbers."""
    assert pieces(pre, "1234") == expected


def test_contractions():
    """Llama 3 and Qwen take contractions in capitals, too; GPT-2 does not."""
    assert pieces("qwen2", "ab's") == ["ab", "'s"]
    assert pieces("gpt-2", "ab's") == ["ab", "'s"]


def test_llama3_takes_whole_words():
    """A word of Llama 3's vocabulary is one token even if no merge leads to it."""
    assert pieces("llama-bpe", "abc") == ["abc"]
    assert pieces("qwen2", "abc") == ["ab", "c"]


def test_qwen_normalizes():
    """Qwen composes characters first."""
    tokenizer = JsonTokenizer(tokenizer_json(metadata("qwen2")))
    assert tokenizer.encode("e\u0301", special=False) == tokenizer.encode("\u00e9", special=False)


def test_added_tokens():
    """Control tokens are hidden, user-defined ones shown; neither is found in user text."""
    tokenizer = JsonTokenizer(tokenizer_json(metadata("qwen2")))
    end, think = tokenizer.special_tokens["<|end|>"], tokenizer.special_tokens["<think>"]
    assert tokenizer.encode("<think><|end|>", special=True) == [think, end]
    assert (tokenizer.token_bytes(end), tokenizer.token_bytes(think)) == (b"", b"<think>")
    assert not {end, think} & set(tokenizer.encode("<think><|end|>", special=False))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer.ggml.model": "llama"}, "'llama'"),
        ({"tokenizer.ggml.pre": "tekken"}, "'tekken'"),
    ],
)
def test_unknown_kinds_are_refused_by_name(changes, message):
    """A vocabulary that cannot be rebuilt faithfully is refused, and its kind named."""
    with pytest.raises(TokenizerError, match=message):
        tokenizer_json(metadata("gpt-2", **changes))


def test_missing_vocabulary():
    """What is missing is named."""
    values = metadata("gpt-2")
    del values["tokenizer.ggml.merges"]
    with pytest.raises(TokenizerError, match="merges"):
        tokenizer_json(values)
