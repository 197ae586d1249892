"""What a model says about itself: template, special tokens, context, sampling defaults."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from gpu_worker.dialect.gguf_tokenizer import IGNORE_MERGES
from gpu_worker.dialect.tokenizer import JsonTokenizer, TokenizerError
from gpu_worker.engine.errors import ModelError

TOKENIZER = "tokenizer.json"

# What the graph builder can read.
ARCHITECTURES = ("llama", "qwen2", "qwen3")

# Tokens that end an assistant's turn in the families we know; models often declare only one.
TURN_ENDS = (
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|end|>",
    "<end_of_turn>",
    "</s>",
)
# Where a vocabulary has these, they end turns, and "<|end|>" ends one message of several (harmony).
ENDS_BESIDE_MESSAGES = ("<|return|>", "<|call|>")
MESSAGE_END = "<|end|>"


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """All that a worker has to know of a model beside its weights and its vocabulary."""

    chat_template: str  # Jinja text; empty if the model has none
    bos_token: str  # as templates spell it; may be empty
    eos_token: str
    bos_id: int | None  # what a prompt without a template begins with; None for nothing
    eos_ids: tuple[int, ...]  # all that end a turn
    context_length: int
    longest_token_bytes: int
    temperature: float | None = None  # the model's own defaults; None where it has none
    top_p: float | None = None
    top_k: int | None = None
    repetition_penalty: float | None = None
    created: int  # seconds since 1970


def gguf_facts(metadata: Mapping[str, Any], tokenizer: JsonTokenizer, created: int) -> ModelFacts:
    """Read a GGUF file's metadata.

    Raises:
        ModelError: something is missing or not supported.
    """
    architecture = metadata.get("general.architecture")
    if architecture not in ARCHITECTURES:
        raise ModelError(
            f"its architecture is {architecture!r} and only {', '.join(ARCHITECTURES)} can be read"
        )
    context_length = metadata.get(f"{architecture}.context_length")
    if context_length is None or "general.file_type" not in metadata:
        raise ModelError(f"its metadata lacks {architecture}.context_length or general.file_type")
    tokens = metadata["tokenizer.ggml.tokens"]
    bos = metadata.get("tokenizer.ggml.bos_token_id")
    eos = metadata.get("tokenizer.ggml.eos_token_id")
    adds_bos = metadata.get(
        "tokenizer.ggml.add_bos_token", metadata.get("tokenizer.ggml.pre") in IGNORE_MERGES
    )
    return ModelFacts(
        chat_template=metadata.get("tokenizer.chat_template", ""),
        bos_token="" if bos is None else tokens[bos],
        eos_token="" if eos is None else tokens[eos],
        bos_id=bos if adds_bos else None,
        eos_ids=_turn_ends([eos, metadata.get("tokenizer.ggml.eot_token_id")], tokenizer),
        context_length=context_length,
        longest_token_bytes=tokenizer.longest_token_bytes,
        temperature=metadata.get("general.sampling.temp"),
        top_p=metadata.get("general.sampling.top_p"),
        top_k=metadata.get("general.sampling.top_k"),
        repetition_penalty=metadata.get("general.sampling.penalty_repeat"),
        created=created,
    )


def folder_facts(folder: Path) -> ModelFacts:
    """Read a folder in OpenVINO's format with the files that come with a model.

    Raises:
        ModelError: something is missing or damaged.
    """
    model = folder / "openvino_model.xml"
    for path in (model, model.with_suffix(".bin")):
        if not path.is_file():
            raise ModelError(f"it lacks {path.name}")
    return companion_facts(folder, read_tokenizer(folder), created=int(model.stat().st_mtime))


def read_tokenizer(folder: Path) -> JsonTokenizer:
    """Read the vocabulary that comes with a model's weights; takes a second if it is large.

    Raises:
        ModelError: it is missing or damaged.
    """
    path = folder / TOKENIZER
    if not path.is_file():
        raise ModelError(f"it lacks {TOKENIZER}")
    try:
        return JsonTokenizer.from_file(path)
    except TokenizerError as error:
        raise ModelError(str(error)) from error


def companion_facts(folder: Path, tokenizer: JsonTokenizer, *, created: int) -> ModelFacts:
    """Read the files that come with a model's weights, whatever their format.

    Args:
        folder: as Hugging Face's have them: config.json and others.
        tokenizer: of that folder.
        created: seconds since 1970.

    Raises:
        ModelError: something is missing or damaged.
    """
    config = read_json(folder / "config.json")
    generation = read_json(folder / "generation_config.json")
    spelling = read_json(folder / "tokenizer_config.json")
    context_length = config.get("text_config", config).get("max_position_embeddings")
    if context_length is None:
        raise ModelError("its config.json lacks max_position_embeddings")
    bos, eos = _content(spelling.get("bos_token")), _content(spelling.get("eos_token"))
    samples = generation.get("do_sample", True)
    return ModelFacts(
        chat_template=_folder_template(folder, spelling),
        bos_token=bos,
        eos_token=eos,
        bos_id=tokenizer.special_tokens.get(bos) if spelling.get("add_bos_token") else None,
        eos_ids=_turn_ends(
            [
                tokenizer.special_tokens.get(eos),
                *_as_list(config.get("eos_token_id")),
                *_as_list(generation.get("eos_token_id")),
            ],
            tokenizer,
        ),
        context_length=context_length,
        longest_token_bytes=tokenizer.longest_token_bytes,
        temperature=generation.get("temperature") if samples else 0.0,
        top_p=generation.get("top_p"),
        top_k=generation.get("top_k"),
        repetition_penalty=generation.get("repetition_penalty"),
        created=created,
    )


def _turn_ends(declared: Iterable[int | None], tokenizer: JsonTokenizer) -> tuple[int, ...]:
    special = tokenizer.special_tokens
    known = {special.get(text) for text in TURN_ENDS}.union(declared)
    if special.keys() >= set(ENDS_BESIDE_MESSAGES):
        known |= {special[text] for text in ENDS_BESIDE_MESSAGES}
        known.discard(special.get(MESSAGE_END))
    return tuple(sorted(token for token in known if token is not None))


def _folder_template(folder: Path, spelling: Mapping[str, Any]) -> str:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = spelling.get("chat_template") or ""
    if isinstance(template, list):
        named = {entry["name"]: entry["template"] for entry in template}
        template = named.get("default", "")
    return str(template)


def _content(token: str | Mapping[str, Any] | None) -> str:
    """Read a token of tokenizer_config.json: its text, or an object that holds it."""
    if isinstance(token, Mapping):
        token = token.get("content")
    return token or ""


def _as_list(value: int | list[int] | None) -> list[int]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; a missing file is an empty one.

    Raises:
        ModelError: it is none.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ModelError(f"its {path.name} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"its {path.name} is not a JSON object")
    return value
