"""The model files that come with fastrun."""

from pathlib import Path

import pytest

from gpu_worker.dialect import families
from gpu_worker.dialect.chat_template import ChatTemplate
from gpu_worker.model_store import ModelStore

TEMPLATES = Path(__file__).parents[2] / "templates"
THINKS, ALWAYS = "reasoning", "reasoning: always"
# The template that each model's repository holds, and how it thinks.
MODELS = {
    "google/gemma-4-31b-it": ("gemma-4-31b-it", THINKS),
    "Qwen/Qwen3-32B": ("qwen-3", THINKS),
    "meta-llama/Llama-3.3-70B-Instruct": ("llama-3", None),
    "openai/gpt-oss-120b": ("gpt-oss", ALWAYS),
}


@pytest.fixture
def store(tmp_path):
    return ModelStore(tmp_path)


def test_all_can_be_read(store):
    """Nothing is wrong with them, and no other is there."""
    known, problems = store.scan()
    assert problems == []
    assert {each.file.id for each in known} == MODELS.keys()


@pytest.mark.parametrize("model", MODELS)
def test_each_speaks_as_its_template_says(store, model):
    """The family that is named is the one that the template is recognized as, with its features."""
    file = store.find(model).file
    name, thinks = MODELS[model]
    template = ChatTemplate((TEMPLATES / f"{name}.jinja").read_text())
    profile = file.dialect.profile(template)
    assert profile.family == file.dialect.family == families.find(template).family
    expected = ["tools", "structured_output", "logprobs", *([thinks] if thinks else [])]
    assert profile.features == expected


@pytest.mark.parametrize("model", MODELS)
def test_each_says_what_buyers_ask_for(store, model):
    """Name, place, weights and date."""
    file = store.find(model).file
    facts = file.facts
    assert facts.name
    assert facts.hugging_face_id.lower() == model.lower()
    assert facts.quantization == file.engine.quantization
    assert facts.created > 1_700_000_000
    assert {"slots", "tensor_parallel", "context_length"} <= file.engine.settings().keys()
