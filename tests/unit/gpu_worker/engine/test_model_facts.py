"""What is read from a model beside its weights."""

import json
import shutil
from pathlib import Path

import pytest

from gpu_worker.dialect.gguf_tokenizer import tokenizer_json
from gpu_worker.dialect.tokenizer import JsonTokenizer
from gpu_worker.engine.cpu.gguf import read_gguf
from gpu_worker.engine.errors import ModelError
from gpu_worker.engine.model_facts import folder_facts, gguf_facts

TINY = Path(__file__).parents[3] / "models/tiny"


@pytest.fixture(scope="module")
def metadata():
    return read_gguf(TINY / "tiny.gguf").metadata


@pytest.fixture(scope="module")
def tokenizer(metadata):
    return JsonTokenizer(tokenizer_json(metadata))


@pytest.fixture
def folder(tmp_path):
    for name in ("tokenizer.json", "config.json", "generation_config.json", "chat_template.jinja"):
        shutil.copy(TINY / name, tmp_path)
    (tmp_path / "openvino_model.xml").touch()
    (tmp_path / "openvino_model.bin").touch()
    return tmp_path


def test_gguf(metadata, tokenizer):
    """A GGUF file's metadata says all there is to know."""
    facts = gguf_facts(metadata, tokenizer, created=7)
    assert facts.context_length == 4096
    assert facts.eos_ids == (0, 2)
    assert (facts.bos_token, facts.eos_token, facts.bos_id) == ("<|endoftext|>", "<|im_end|>", None)
    assert facts.chat_template == (TINY / "chat_template.jinja").read_text()
    assert (facts.temperature, facts.top_p, facts.top_k) == (None, None, None)
    assert facts.created == 7


def test_gguf_sampling_defaults(metadata, tokenizer):
    """Sampling defaults and a begin-of-sequence token are taken where a file has them."""
    extra = {
        "general.sampling.temp": 0.6,
        "general.sampling.top_k": 20,
        "general.sampling.penalty_repeat": 1.2,
        "tokenizer.ggml.add_bos_token": True,
    }
    facts = gguf_facts(metadata | extra, tokenizer, created=7)
    assert (facts.temperature, facts.top_p, facts.top_k, facts.bos_id) == (0.6, None, 20, 0)
    assert facts.repetition_penalty == 1.2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"general.architecture": "mamba"}, "'mamba'"),
        ({"llama.context_length": None}, "context_length"),
    ],
)
def test_gguf_that_cannot_be_used(metadata, tokenizer, change, message):
    """An unknown architecture or a missing length is named."""
    with pytest.raises(ModelError, match=message):
        gguf_facts(metadata | change, tokenizer, created=7)


def test_folder_says_what_the_file_says(folder, metadata, tokenizer):
    """The same model as a folder gives the same facts."""
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": "<|endoftext|>", "eos_token": {"content": "<|im_end|>"}})
    )
    facts = folder_facts(folder)
    expected = gguf_facts(metadata, tokenizer, created=facts.created)
    assert facts == expected


def test_folder_generation_config(folder):
    """generation_config.json gives sampling defaults and further ends of a turn."""
    (folder / "generation_config.json").write_text(
        json.dumps(
            {
                "temperature": 0.7,
                "top_p": 0.8,
                "top_k": 20,
                "repetition_penalty": 1.05,
                "eos_token_id": [2, 5],
            }
        )
    )
    facts = folder_facts(folder)
    assert (facts.temperature, facts.top_p, facts.top_k) == (0.7, 0.8, 20)
    assert facts.repetition_penalty == 1.05
    assert facts.eos_ids == (0, 2, 5)


@pytest.mark.parametrize(
    ("special", "ends"),
    [
        (["<|end|>"], {"<|end|>"}),
        (["<|end|>", "<|return|>", "<|call|>", "<|endoftext|>"], {"<|return|>", "<|call|>"}),
    ],
)
def test_what_ends_a_message_of_several_ends_no_turn(folder, special, ends):
    """In a vocabulary for harmony, one end is of messages, whatever the model's files declare."""
    path = folder / "tokenizer.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    first = 1 + max(token["id"] for token in data["added_tokens"])
    ids = {text: first + 1000 + at for at, text in enumerate(special)}
    data["added_tokens"] = [
        {**data["added_tokens"][0], "id": number, "content": text} for text, number in ids.items()
    ]
    path.write_text(json.dumps(data), encoding="utf-8")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ids["<|end|>"]}))
    (folder / "config.json").write_text('{"max_position_embeddings": 64}')
    expected = {ids[text] for text in (*ends, "<|endoftext|>") if text in ids}
    assert set(folder_facts(folder).eos_ids) == expected


def test_folder_that_does_not_sample(folder):
    """A generation_config.json that switches sampling off means temperature 0."""
    (folder / "generation_config.json").write_text(json.dumps({"do_sample": False}))
    assert folder_facts(folder).temperature == 0


def test_folder_template_in_the_tokenizer_config(folder):
    """Without a template file the one in tokenizer_config.json counts; of several the default."""
    (folder / "chat_template.jinja").unlink()
    assert folder_facts(folder).chat_template == ""
    named = [{"name": "tools", "template": "t"}, {"name": "default", "template": "d"}]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert folder_facts(folder).chat_template == "d"


@pytest.mark.parametrize("name", ["openvino_model.xml", "openvino_model.bin", "tokenizer.json"])
def test_folder_that_lacks_a_file(folder, name):
    """A file that is missing is named."""
    (folder / name).unlink()
    with pytest.raises(ModelError, match=name):
        folder_facts(folder)


@pytest.mark.parametrize("content", ["{", "[]", "{}"])
def test_folder_with_a_broken_config(folder, content):
    """A config.json that is damaged or says nothing is named."""
    (folder / "config.json").write_text(content)
    with pytest.raises(ModelError, match=r"config\.json"):
        folder_facts(folder)
