"""What an engine can run."""

import pytest

from gpu_worker.checkpoint import Checkpoint, Format
from gpu_worker.model_fit import GIB, Target, cached_tokens, gpus, objections

LLAMA = {
    "format": Format.SAFETENSORS,
    "weight_bytes": 66 * GIB,
    "architecture": "LlamaForCausalLM",
    "quantization": "bf16",
    "attention_heads": 64,
    "cache_bytes_per_token": 1 << 18,
}
GPU = {"engine": "tensorrt-llm", "gpu_memory": 80 * GIB}


def reasons(model=None, **target):
    return objections(Checkpoint(**(LLAMA | (model or {}))), Target(**(GPU | target)))


def test_what_fits_has_no_objections():
    """Also where nobody knows the GPUs, and for the CPU engine's formats."""
    assert reasons() == []
    assert reasons({"weight_bytes": 1 << 50}, gpu_memory=None) == []
    assert reasons({"format": Format.OPENVINO}, engine="cpu") == []
    for architecture in ("llama", ""):
        model = {"format": Format.GGUF, "architecture": architecture}
        assert reasons(model, engine="cpu") == []


@pytest.mark.parametrize(
    ("model", "target", "says"),
    [
        ({"format": Format.GGUF}, {}, "reads safetensors, and this is GGUF"),
        ({}, {"engine": "cpu"}, "the CPU engine reads GGUF files and OpenVINO folders"),
        ({"format": Format.GGUF, "architecture": "rwkv"}, {"engine": "cpu"}, "is rwkv, and"),
        ({"architecture": "RwkvForCausalLM"}, {}, "RwkvForCausalLM, which TensorRT-LLM does not"),
        ({"architecture": ""}, {}, "nowhere told"),
        ({"method": "bitsandbytes"}, {}, "quantized by bitsandbytes"),
        ({}, {"tensor_parallel": 3}, "3 GPUs cannot share its 64 attention heads"),
        ({"weight_bytes": 73 * GIB}, {}, "73 GiB, too much for 1 x 80 GiB: it needs 2"),
        ({}, {"gpu_memory": 24 * GIB, "tensor_parallel": 2}, "2 x 24 GiB: it needs 4"),
        ({}, {"quantization": "fp8"}, "are bf16 and its model file says fp8"),
    ],
)
def test_what_does_not_fit_is_told_why(model, target, says):
    """A sentence for the reason, and no other."""
    [reason] = reasons(model, **target)
    assert says in reason


def test_all_reasons_are_told():
    """Not only the first."""
    assert len(reasons({"architecture": "x", "method": "y"}, tensor_parallel=3)) == 3


def test_how_many_gpus():
    """A power of two, with a tenth of each left for the rest."""
    model = Checkpoint(**LLAMA)
    assert [gpus(model, memory * GIB) for memory in (141, 80, 74, 73, 24)] == [1, 1, 1, 2, 4]
    assert gpus(Checkpoint(**(LLAMA | {"weight_bytes": 0})), GIB) == 1


def test_how_many_tokens_the_cache_holds():
    """What the weights leave, by what a token takes."""
    model = Checkpoint(**LLAMA)
    target = Target(**(GPU | {"tensor_parallel": 2}))
    assert cached_tokens(model, target, fraction=0.5) == 94 * GIB // 2 >> 18
    assert cached_tokens(model, Target(engine="tensorrt-llm"), fraction=0.5) is None
    small = Target(engine="tensorrt-llm", gpu_memory=GIB)
    assert cached_tokens(model, small, fraction=0.5) == 0
