"""Reading a GGUF file's metadata."""

import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_worker.engine.cpu.gguf import read_gguf
from gpu_worker.engine.errors import ModelError

TINY = Path(__file__).parents[4] / "models/tiny/tiny.gguf"


def string(text):
    return struct.pack("<Q", len(text.encode())) + text.encode()


def gguf(*pairs, version=3):
    return b"GGUF" + struct.pack("<IQQ", version, 0, len(pairs)) + b"".join(pairs)


def test_reads_every_kind_of_value(tmp_path):
    """Numbers, booleans, strings and arrays of them are read."""
    path = tmp_path / "model.gguf"
    path.write_bytes(
        gguf(
            string("int") + struct.pack("<Ii", 5, -7),
            string("float") + struct.pack("<If", 6, 0.5),
            string("bool") + struct.pack("<I?", 7, True),
            string("text") + struct.pack("<I", 8) + string("é"),
            string("numbers") + struct.pack("<IIQ3H", 9, 2, 3, 1, 2, 3),
            string("texts") + struct.pack("<IIQ", 9, 8, 2) + string("a") + string("b"),
        )
    )
    assert read_gguf(path).metadata == {
        "int": -7,
        "float": 0.5,
        "bool": True,
        "text": "é",
        "numbers": [1, 2, 3],
        "texts": ["a", "b"],
    }


def test_reads_the_tiny_model():
    """The model of the tests is read as the gguf package wrote it."""
    metadata, tensors = read_gguf(TINY)
    assert metadata["general.architecture"] == "llama"
    assert metadata["llama.context_length"] == 4096
    assert len(metadata["tokenizer.ggml.tokens"]) == 1024
    embedding = tensors[0]
    assert (embedding.name, embedding.shape, embedding.kind) == (
        "token_embd.weight",
        (1024, 192),
        1,
    )
    assert max(tensor.end for tensor in tensors) <= TINY.stat().st_size


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a GGUF"),
        (b"PK\3\4", "not a GGUF"),
        (gguf(version=9), "version 9"),
        (gguf(string("a") + struct.pack("<I", 77)), "damaged"),
        (gguf(string("a") + struct.pack("<IQ", 8, 1 << 60)), "damaged"),
        (gguf(string("a") + struct.pack("<IIQ", 9, 4, 1 << 60)), "damaged"),
        (gguf(struct.pack("<Q", 1) + b"\xff" + struct.pack("<IB", 0, 1)), "damaged"),
    ],
)
def test_refuses_what_is_no_gguf_file(tmp_path, content, message):
    """Anything else is refused with a sentence."""
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=message):
        read_gguf(path)


def test_refuses_a_missing_file(tmp_path):
    """A file that is not there is named."""
    with pytest.raises(ModelError, match="No such file"):
        read_gguf(tmp_path / "model.gguf")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_refuses_a_file_cut_anywhere(tmp_path, data):
    """Metadata that ends early is refused, wherever it ends."""
    whole = gguf(
        string("text") + struct.pack("<I", 8) + string("abc"),
        string("texts") + struct.pack("<IIQ", 9, 8, 2) + string("a") + string("b"),
    )
    path = tmp_path / "model.gguf"
    path.write_bytes(whole[: data.draw(st.integers(4, len(whole) - 1))])
    with pytest.raises(ModelError, match="damaged"):
        read_gguf(path)
