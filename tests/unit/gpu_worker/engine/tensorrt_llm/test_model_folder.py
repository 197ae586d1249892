"""What a folder in Hugging Face's format says."""

import json
import shutil

import pytest
from standin_engine import TINY

from gpu_worker.engine.tensorrt_llm.errors import StartupError
from gpu_worker.engine.tensorrt_llm.model_folder import find
from gpu_worker.model_store import ModelStore


@pytest.fixture
def folder(tmp_path):
    for name in ("tokenizer.json", "config.json", "generation_config.json", "chat_template.jinja"):
        shutil.copy(TINY / name, tmp_path)
    return tmp_path


def change(folder, name, **values):
    path = folder / name
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(known | values))


def test_a_folder_is_read(folder):
    """Name, window, vocabulary and ends come from its files."""
    found = find(f"org/tiny={folder}")
    assert (found.name, found.path, found.tokenizer_file) == (
        "org/tiny",
        folder,
        folder / "tokenizer.json",
    )
    assert (found.facts.context_length, found.vocabulary) == (4096, 1024)
    assert (found.facts.eos_ids, found.eos_id) == ((0, 2), 2)


def test_the_tokenizers_end_token_ends_guides(folder):
    """The library knows that one only, whatever config.json says."""
    change(folder, "tokenizer_config.json", eos_token="<|endoftext|>")
    assert find(f"tiny={folder}").eos_id == 0
    change(folder, "tokenizer_config.json", eos_token={"content": "<|im_end|>"})
    assert find(f"tiny={folder}").eos_id == 2


def test_several_ends_are_all_kept(folder):
    """generation_config.json may name more than one."""
    change(folder, "config.json", eos_token_id=[2, 1])
    change(folder, "generation_config.json", eos_token_id=[1, 2])
    found = find(f"tiny={folder}")
    assert (found.facts.eos_ids, found.eos_id) == ((0, 1, 2), 2)


def test_the_language_model_of_several_counts(folder):
    """Models that see as well have a part of the configuration for texts."""
    inner = {"vocab_size": 999, "max_position_embeddings": 77}
    change(folder, "config.json", text_config=inner)
    found = find(f"tiny={folder}")
    assert (found.facts.context_length, found.vocabulary) == (77, 999)


def test_a_model_file_names_a_folder(folder, tmp_path):
    """With what is set by hand."""
    file = tmp_path / "model.toml"
    file.write_text('id = "mine"\npath = "."\n[dialect]\nfamily = "hermes"\n')
    found = find(str(file))
    assert (found.name, found.path, found.dialect.family) == ("mine", folder, "hermes")


def test_a_pulled_model_is_found_where_models_lie(folder, tmp_path):
    """With what its file publishes."""
    store = ModelStore(tmp_path / "models")
    file = store.write("org/m", 'id = "org/m"\nhub = "org/M"\n[public]\nname = "The M"\n')
    shutil.copytree(folder, store.root / "org--m", ignore=shutil.ignore_patterns("models"))
    found = find(str(file), store)
    assert (found.path, found.public.name) == (store.root / "org--m", "The M")
    assert found.public.hugging_face_id == "org/M"


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("config.json", "{}", "max_position_embeddings"),
        ("config.json", '{"max_position_embeddings": 5}', "vocab_size"),
        ("config.json", "[", r"config\.json cannot be read"),
        ("tokenizer.json", "{}", r"tokenizer\.json cannot be used"),
    ],
)
def test_what_is_missing_is_named(folder, name, content, reason):
    """One sentence, with the folder."""
    (folder / name).write_text(content)
    with pytest.raises(StartupError, match=rf"'tiny' at {folder} cannot be used: .*{reason}"):
        find(f"tiny={folder}")
