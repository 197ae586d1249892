"""What a repository of a model holds."""

import json

import pytest

from gpu_worker.checkpoint import CheckpointError, Format, choose, describe

HF = ["config.json", "tokenizer.json", "LICENSE", "README.md", "a.py", "model-1.safetensors"]


def described(config=None, *, quant=None):
    files = {"model.safetensors": b"12345"}
    if config is not None:
        files["config.json"] = json.dumps(config).encode()
    if quant is not None:
        files["hf_quant_config.json"] = json.dumps(quant).encode()
    sizes = {name: len(content) for name, content in files.items()}
    return describe(
        choose(files), sizes, read=files.__getitem__, gguf_architecture=lambda _: "never"
    )


def test_a_repository_of_safetensors():
    """Code, other forms of the weights and folders below are left out."""
    names = [*HF, "consolidated.safetensors", "original/x.safetensors", "pytorch_model.bin"]
    chosen = choose(names)
    assert (chosen.format, chosen.weights) == (Format.SAFETENSORS, ("model-1.safetensors",))
    assert chosen.names == (
        "LICENSE",
        "README.md",
        "config.json",
        "tokenizer.json",
        "model-1.safetensors",
    )
    assert choose(["consolidated.safetensors"]).weights == ("consolidated.safetensors",)


def test_the_engines_own_format_goes_first():
    """Where there are several; a format that is not there is none."""
    names = [*HF, "m.gguf", "openvino_model.xml", "openvino_model.bin"]
    assert choose(names, prefer=Format.SAFETENSORS).format is Format.SAFETENSORS
    assert choose(names, prefer=Format.GGUF).names == ("m.gguf",)
    openvino = choose(names, prefer=Format.OPENVINO)
    assert openvino.weights == ("openvino_model.xml", "openvino_model.bin")
    assert choose(["m.gguf"], prefer=Format.SAFETENSORS).format is Format.GGUF
    assert choose(HF, prefer=Format.GGUF).format is Format.SAFETENSORS
    assert choose([*HF, "q4/m.gguf"], file="q4/m.gguf").weights == ("q4/m.gguf",)


@pytest.mark.parametrize(
    ("names", "file", "says"),
    [
        (["config.json"], "", "holds no weights"),
        (["model.bin", "config.json"], "", "pickled"),
        (["a.gguf", "b.gguf"], "", r"several GGUF files: .* \(a\.gguf, b\.gguf\)"),
        (["a.gguf"], "c.gguf", r"no file c\.gguf \(a\.gguf\)"),
        (["../a.gguf"], "../a.gguf", "no file"),
        (["a.txt"], "a.txt", r"a\.txt is no GGUF file"),
        (["m-00001-of-00002.gguf"], "", "one part of several"),
    ],
)
def test_what_is_no_model(names, file, says):
    """Is told, with what there is."""
    with pytest.raises(CheckpointError, match=says):
        choose(names, file=file)


@pytest.mark.parametrize(
    ("config", "quant", "method", "kind"),
    [
        ({}, None, "", ""),
        ({"dtype": "bfloat16"}, None, "", "bf16"),
        ({"torch_dtype": "float16"}, None, "", "fp16"),
        ({"text_config": {"dtype": "bfloat16"}}, None, "", "bf16"),
        ({"quantization_config": {"quant_method": "fp8"}}, None, "fp8", "fp8"),
        ({"quantization_config": {"quant_method": "mxfp4"}}, None, "mxfp4", "mxfp4"),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, None, "awq", "int4"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 8}}, None, "gptq", "int8"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, None, "bitsandbytes", "int8"),
        (
            {"quantization_config": {"quant_method": "compressed-tensors", "format": "x"}},
            None,
            "compressed-tensors",
            "",
        ),
        ({"dtype": "bfloat16"}, {"quantization": {"quant_algo": "NVFP4"}}, "modelopt", "nvfp4"),
        ({}, {"quantization": {"quant_algo": "W4A16_AWQ"}}, "modelopt", "int4"),
        ({}, {"quantization": {"quant_algo": "FP8"}}, "modelopt", "fp8"),
    ],
)
def test_what_weights_are(config, quant, method, kind):
    """As the many files that say so say it."""
    found = described(config, quant=quant)
    assert (found.method, found.quantization, found.weight_bytes) == (method, kind, 5)


def test_what_a_token_takes_in_the_cache():
    """Keys and values of all layers at two bytes; unknown where layers differ."""
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "num_hidden_layers": 64,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 40960,
    }
    found = described(config)
    assert found.cache_bytes_per_token == 256 << 10
    assert (found.architecture, found.context_length, found.attention_heads) == (
        "Qwen3ForCausalLM",
        40960,
        64,
    )
    assert described({"text_config": config}).cache_bytes_per_token == 256 << 10
    never = {"sliding_window": 4096, "use_sliding_window": False}
    assert described(config | never).cache_bytes_per_token == 256 << 10
    assert described(config | {"sliding_window": 4096}).cache_bytes_per_token is None
    kinds = {"layer_types": ["full_attention", "sliding_attention"]}
    assert described(config | kinds).cache_bytes_per_token is None
    assert described({}).cache_bytes_per_token is None


def test_damaged_files_are_named():
    """Rather than taken for a model without facts."""
    with pytest.raises(CheckpointError, match=r"config\.json is no JSON object"):
        described([])
    choice = choose(["config.json", "m.safetensors"])
    with pytest.raises(CheckpointError, match=r"config\.json is not JSON"):
        describe(
            choice,
            {"config.json": 1, "m.safetensors": 1},
            read=lambda _: b"{",
            gguf_architecture=str,
        )
