"""What a folder or a repository of a model holds, told from names and its small files; pure."""

import json
import re
from collections.abc import Callable, Collection, Mapping
from enum import StrEnum
from typing import Any

import msgspec

OPENVINO = ("openvino_model.xml", "openvino_model.bin")
CONFIG, QUANT_CONFIG = "config.json", "hf_quant_config.json"
_BESIDE = (".json", ".jinja", ".model", ".txt")
_PAPERS = ("LICENSE", "NOTICE", "README", "USE_POLICY")
_PICKLED = (".bin", ".pt", ".pth", ".ckpt")
_SPLIT = re.compile(r"-\d{5}-of-\d{5}\.gguf$")
_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


class CheckpointError(Exception):
    """No model can be made of it; the message says why."""


class Format(StrEnum):
    """How weights are written."""

    SAFETENSORS = "safetensors"
    GGUF = "GGUF"
    OPENVINO = "OpenVINO"


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """Those of many files that make a model."""

    format: Format
    weights: tuple[str, ...]
    beside: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All, the small ones first."""
        return (*self.beside, *self.weights)


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a model before it is loaded; None or empty for what is not."""

    format: Format
    weight_bytes: int
    architecture: str = ""
    quantization: str = ""  # one of model_file.QUANTIZATIONS
    method: str = ""  # how it was quantized, by the name that its files have for that
    context_length: int | None = None
    attention_heads: int | None = None
    # What a token takes in the KV cache at 16 bits; None where layers differ.
    cache_bytes_per_token: int | None = None


def choose(names: Collection[str], *, file: str = "", prefer: Format | None = None) -> Choice:
    """Choose the files that make a model; those in folders below are others' forms of it.

    Args:
        names: of all files, with slashes.
        file: the GGUF file that is meant, if it is said.
        prefer: the format to take where there are several.

    Raises:
        CheckpointError: there is none, or more than one.
    """
    if file:
        if file not in names or ".." in file.split("/"):
            raise CheckpointError(f"it has no file {file}{_known(names)}")
        return _gguf([file])
    top = sorted(name for name in names if "/" not in name)
    beside = tuple(name for name in top if name.endswith(_BESIDE) or name.startswith(_PAPERS))
    found: dict[Format, Choice] = {}
    if safetensors := _safetensors(top):
        found[Format.SAFETENSORS] = Choice(
            format=Format.SAFETENSORS, weights=safetensors, beside=beside
        )
    if set(top) >= set(OPENVINO):
        found[Format.OPENVINO] = Choice(format=Format.OPENVINO, weights=OPENVINO, beside=beside)
    if prefer in found:
        return found[prefer]
    gguf = [name for name in top if name.endswith(".gguf")]
    if gguf and (prefer is Format.GGUF or not found):
        return _gguf(gguf)
    if found:
        return next(iter(found.values()))
    if any(name.endswith(_PICKLED) for name in top):
        raise CheckpointError("its weights are pickled, which may hold code: none are read")
    raise CheckpointError("it holds no weights")


def _safetensors(top: list[str]) -> tuple[str, ...]:
    names = [name for name in top if name.endswith(".safetensors")]
    # Where both are there, this is the same once more, in Mistral's own form.
    usual = [name for name in names if not name.startswith("consolidated")]
    return tuple(usual or names)


def _gguf(names: list[str]) -> Choice:
    if len(names) > 1:
        raise CheckpointError(f"it has several GGUF files: say which with --file{_known(names)}")
    if not names[0].endswith(".gguf"):
        raise CheckpointError(f"{names[0]} is no GGUF file: leave out --file")
    if _SPLIT.search(names[0]):
        raise CheckpointError(f"{names[0]} is one part of several: a GGUF file has to be whole")
    return Choice(format=Format.GGUF, weights=(names[0],))


def _known(names: Collection[str]) -> str:
    gguf = sorted(name for name in names if name.endswith(".gguf"))
    shown = ", ".join(gguf[:8]) + (", ..." if len(gguf) > 8 else "")
    return f" ({shown})" if shown else ""


def describe(
    choice: Choice,
    sizes: Mapping[str, int],
    *,
    read: Callable[[str], bytes],
    gguf_architecture: Callable[[str], str],
) -> Checkpoint:
    """Read what the small files say.

    Args:
        choice: the files that make the model.
        sizes: of all files, in bytes.
        read: returns the content of a small file.
        gguf_architecture: returns what a GGUF file says it is; empty if nobody knows.

    Raises:
        CheckpointError: a file is damaged.
    """
    weight_bytes = sum(sizes[name] for name in choice.weights)
    if choice.format is Format.GGUF:
        return Checkpoint(
            format=choice.format,
            weight_bytes=weight_bytes,
            architecture=gguf_architecture(choice.weights[0]),
        )
    config = _object(read, CONFIG) if CONFIG in sizes else {}
    more = _object(read, QUANT_CONFIG) if QUANT_CONFIG in sizes else {}
    text = config.get("text_config", config)
    method, quantization = _quantization(config, more)
    architectures = config.get("architectures") or [""]
    return Checkpoint(
        format=choice.format,
        weight_bytes=weight_bytes,
        architecture=str(architectures[0]),
        quantization=quantization,
        method=method,
        context_length=text.get("max_position_embeddings"),
        attention_heads=text.get("num_attention_heads"),
        cache_bytes_per_token=_cache_bytes(text),
    )


def _object(read: Callable[[str], bytes], name: str) -> dict[str, Any]:
    try:
        value = json.loads(read(name))
    except ValueError as error:
        raise CheckpointError(f"its {name} is not JSON") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"its {name} is no JSON object")
    return value


def _quantization(config: Mapping[str, Any], more: Mapping[str, Any]) -> tuple[str, str]:
    """Return the method, and what the weights are."""
    told = config.get("quantization_config") or more.get("quantization")
    if not told:
        text = config.get("text_config", {})
        holders = (config, text)
        dtypes = [each.get(key) for each in holders for key in ("dtype", "torch_dtype")]
        return "", _DTYPES.get(next((str(name) for name in dtypes if name), ""), "")
    method = str(told.get("quant_method", "modelopt")).lower()
    words = f"{method} {told.get('quant_algo', '')} {told.get('format', '')}".lower()
    if method == "bitsandbytes":
        return method, "int4" if told.get("load_in_4bit") else "int8"
    for sign, kind in _SIGNS.items():
        if sign in words:
            return method, kind
    return method, {4: "int4", 8: "int8"}.get(told.get("bits", 0), "")


# In words of quantization configurations; the first that is found counts.
_SIGNS = {
    "nvfp4": "nvfp4",
    "mxfp4": "mxfp4",
    "fp8": "fp8",
    "float-quantized": "fp8",
    "w4a": "int4",
    "w8a": "int8",
    "pack-quantized": "int4",
    "int-quantized": "int8",
}


def _cache_bytes(config: Mapping[str, Any]) -> int | None:
    layers, heads = config.get("num_hidden_layers"), config.get("num_attention_heads")
    slides = config.get("sliding_window") and config.get("use_sliding_window", True)
    differ = set(config.get("layer_types") or ()) - {"full_attention"}
    if not (layers and heads) or slides or differ:
        return None
    size = config.get("head_dim") or config.get("hidden_size", 0) // heads
    return 2 * layers * config.get("num_key_value_heads", heads) * size * 2 or None
