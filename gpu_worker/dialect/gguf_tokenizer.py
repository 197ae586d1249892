"""The tokenizer.json that a GGUF file's metadata describes."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gpu_worker.dialect.tokenizer import TokenizerError

CONTROL, USER_DEFINED = 3, 4  # tokenizer.ggml.token_type

# How text is cut into words before byte pairs are merged, by tokenizer.ggml.pre. A wrong cut gives
# other token ids than the model was trained on, so that an unknown name is refused.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GPT2 = [{"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}]


def _split(pattern: str) -> list[dict[str, Any]]:
    return [
        {
            "type": "Split",
            "pattern": {"Regex": pattern},
            "behavior": "Isolated",
            "invert": False,
        },
        {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": False,
            "use_regex": False,
        },
    ]


_LLAMA3 = _split(_WORDS % "{1,3}")
PRE_TOKENIZERS: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "gpt-2": _GPT2,
    "smollm": [{"type": "Digits", "individual_digits": True}, *_GPT2],
    "qwen2": _split(_WORDS % ""),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
}
# These take a word that is in the vocabulary as it is, without merging.
IGNORE_MERGES = {"llama-bpe", "llama3", "llama-v3"}
NORMALIZERS = {"qwen2": {"type": "NFC"}}


def tokenizer_json(metadata: Mapping[str, Any]) -> str:
    """Write the tokenizer of a byte-level BPE model.

    Args:
        metadata: a GGUF file's key-value pairs.

    Raises:
        TokenizerError: the vocabulary is missing or of a kind that cannot be rebuilt faithfully.
    """
    model = metadata.get("tokenizer.ggml.model")
    if model != "gpt2":
        raise TokenizerError(
            f"its tokenizer model is {model!r} and only byte-level BPE ('gpt2') is supported: "
            "use an OpenVINO folder with a tokenizer.json"
        )
    pre: str = metadata.get("tokenizer.ggml.pre", "")
    if pre not in PRE_TOKENIZERS:
        raise TokenizerError(
            f"its pre-tokenizer is {pre!r} and only {', '.join(PRE_TOKENIZERS)} are supported: "
            "use an OpenVINO folder with a tokenizer.json"
        )
    try:
        tokens = metadata["tokenizer.ggml.tokens"]
        types = metadata["tokenizer.ggml.token_type"]
        merges = metadata["tokenizer.ggml.merges"]
    except KeyError as error:
        raise TokenizerError(f"its metadata lacks {error}") from error
    data = {
        "version": "1.0",
        "added_tokens": [
            _added(token_id, tokens[token_id], special=kind == CONTROL)
            for token_id, kind in enumerate(types)
            if kind in (CONTROL, USER_DEFINED)
        ],
        "normalizer": NORMALIZERS.get(pre),
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": PRE_TOKENIZERS[pre]},
        "decoder": {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": False,
            "use_regex": False,
        },
        "model": {
            "type": "BPE",
            "ignore_merges": pre in IGNORE_MERGES,
            "vocab": {token: token_id for token_id, token in enumerate(tokens)},
            "merges": [merge.split(" ", 1) for merge in merges],
        },
    }
    return json.dumps(data, ensure_ascii=False)


def _added(token_id: int, content: str, *, special: bool) -> dict[str, Any]:
    return {
        "id": token_id,
        "content": content,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": special,
    }
