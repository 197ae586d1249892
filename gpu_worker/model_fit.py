"""Whether an engine can run a model, told before its weights are fetched; pure."""

import math
from typing import Literal

import msgspec

from gpu_worker.checkpoint import Checkpoint, Format
from gpu_worker.engine.model_facts import ARCHITECTURES as GGUF_ARCHITECTURES

GIB = 1 << 30
# Of a GPU's memory: the rest is for the KV cache, and for what one step computes.
WEIGHTS_SHARE = 0.9
# What TensorRT-LLM's documentation lists for its PyTorch backend (docs/source/models, 1.3.0rc29 and
# rc13), without those that do not write text.
ARCHITECTURES = frozenset(
    [
        "AfmoeForCausalLM",
        "Cohere2ForCausalLM",
        "DeciLMForCausalLM",
        "DeepseekV3ForCausalLM",
        "DeepseekV32ForCausalLM",
        "DeepseekV4ForCausalLM",
        "Exaone4ForCausalLM",
        "ExaoneMoEForCausalLM",
        "Gemma3ForCausalLM",
        "Gemma3ForConditionalGeneration",
        "Gemma4ForConditionalGeneration",
        "Gemma4UnifiedForConditionalGeneration",
        "Glm4MoeForCausalLM",
        "GlmMoeDsaForCausalLM",
        "GptOssForCausalLM",
        "KimiK25ForConditionalGeneration",
        "LagunaForCausalLM",
        "LlamaForCausalLM",
        "Llama4ForConditionalGeneration",
        "MiniMaxM2ForCausalLM",
        "MiniMaxM3SparseForConditionalGeneration",
        "MistralForCausalLM",
        "Mistral3ForConditionalGeneration",
        "MixtralForCausalLM",
        "MllamaForConditionalGeneration",
        "NemotronForCausalLM",
        "NemotronHForCausalLM",
        "NemotronNASForCausalLM",
        "Phi3ForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen3ForCausalLM",
        "Qwen3MoeForCausalLM",
        "Qwen3NextForCausalLM",
        "Qwen3_5MoeForCausalLM",
        "Step3p7ForConditionalGeneration",
    ]
)
# Likewise, by how a model's files call them.
METHODS = ("", "modelopt", "fp8", "mxfp4", "awq", "gptq")


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """What a model is to run on."""

    engine: Literal["cpu", "tensorrt-llm"]
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    # Of each GPU, in bytes; None if nobody has said.
    gpu_memory: int | None = None
    # What the model's file says that the weights are; empty if it does not.
    quantization: str = ""


def objections(model: Checkpoint, target: Target) -> list[str]:
    """Say why the engine cannot run the model, a sentence for each reason; none if it can."""
    reasons = _cpu(model) if target.engine == "cpu" else _tensorrt_llm(model, target)
    if target.quantization and model.quantization not in ("", target.quantization):
        reasons.append(
            f"its weights are {model.quantization} and its model file says {target.quantization}"
        )
    return reasons


def _cpu(model: Checkpoint) -> list[str]:
    if model.format is Format.SAFETENSORS:
        reads = "the CPU engine reads GGUF files and OpenVINO folders, and this has safetensors"
        return [f"{reads}: take a GGUF of it, or --engine tensorrt-llm"]
    named = model.architecture if model.format is Format.GGUF else ""
    if named and named not in GGUF_ARCHITECTURES:
        known = ", ".join(GGUF_ARCHITECTURES)
        return [f"its architecture is {named}, and the CPU engine reads {known}"]
    return []


def _tensorrt_llm(model: Checkpoint, target: Target) -> list[str]:
    if model.format is not Format.SAFETENSORS:
        reads = f"TensorRT-LLM reads safetensors, and this is {model.format}"
        return [f"{reads}: take the model's own repository, or --engine cpu"]
    reasons = []
    if model.architecture not in ARCHITECTURES:
        named = model.architecture or "nowhere told"
        reasons.append(f"its architecture is {named}, which TensorRT-LLM does not list")
    if model.method not in METHODS:
        reasons.append(f"it is quantized by {model.method}, which TensorRT-LLM does not list")
    heads = model.attention_heads
    if heads and heads % target.tensor_parallel:
        reasons.append(f"{target.tensor_parallel} GPUs cannot share its {heads} attention heads")
    if target.gpu_memory and (needed := gpus(model, target.gpu_memory)) > _count(target):
        reasons.append(
            f"its weights are {model.weight_bytes / GIB:.0f} GiB, too much for {_count(target)} x "
            f"{target.gpu_memory / GIB:.0f} GiB: it needs {needed} of these GPUs"
        )
    return reasons


def gpus(model: Checkpoint, memory: int) -> int:
    """Return how many GPUs of so many bytes hold the weights: a power of two, as heads divide."""
    least = model.weight_bytes / (memory * WEIGHTS_SHARE)
    return 1 << max(0, math.ceil(math.log2(least))) if least > 0 else 1


def cached_tokens(model: Checkpoint, target: Target, *, fraction: float) -> int | None:
    """Return how many tokens the KV cache holds at 16 bits, by arithmetic; None if unknown."""
    if not (target.gpu_memory and model.cache_bytes_per_token):
        return None
    left = target.gpu_memory * _count(target) - model.weight_bytes
    return max(0, int(left * fraction / model.cache_bytes_per_token))


def _count(target: Target) -> int:
    return target.tensor_parallel * target.pipeline_parallel
