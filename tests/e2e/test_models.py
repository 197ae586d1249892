"""Models that are pulled and served by their ids, on both engines, and what their files say."""

import json
import os
import subprocess
import sys

import pytest
from small_hub import Repo, small_hub
from standin_engine import STANDIN, TINY

FILES = ("config.json", "generation_config.json", "tokenizer.json", "chat_template.jinja")


@pytest.fixture
def models(tmp_path, shared_machine):
    """Return what runs a model command with a folder of models and a hub of its own."""
    with small_hub() as hub:
        folder = {name: (TINY / name).read_bytes() for name in FILES}
        hub.repos["org/tiny"] = Repo({**folder, "model.safetensors": b"weights"})
        hub.repos["org/gguf"] = Repo(
            {"tiny.gguf": (TINY / "tiny.gguf").read_bytes()}, architecture="llama"
        )
        environ = {
            "HF_ENDPOINT": hub.url,
            "HF_HOME": str(tmp_path / "hf"),
            "FASTRUN_WORKER_MODELS": str(tmp_path / "models"),
        }

        def run(*words, **more):
            return shared_machine.run("model", *words, **environ, **more)

        run.environ = environ
        run.folder = tmp_path / "models"
        yield run


def test_a_pulled_model_is_served_as_its_file_says(models, shared_machine):
    """By its id, with its settings and facts; while it is served, its files stay."""
    done = models("pull", "org/tiny", "--engine", "tensorrt-llm", "--gpus", "2", "--as", "my/tiny")
    assert done.returncode == 0, done.stderr
    [path] = models.folder.glob("*.toml")
    path.write_text(path.read_text() + 'slots = 3\n[public]\nname = "The tiny one"\n')
    up = shared_machine.up(
        *("--ephemeral", "--json", "--engine", "tensorrt-llm", "--model", "my/tiny"),
        PYTHONPATH=str(STANDIN),
        **models.environ,
    )
    with up.running() as stack:
        data = {"FASTRUN_DATA": stack.ready["data"]}
        assert [worker.slots for worker in stack.fleet().workers] == [3]
        with stack.client() as client:
            [model] = client.models.list().data
            assert (model.id, model.name) == ("my/tiny", "The tiny one")
            assert (model.hugging_face_id, model.quantization) == ("org/tiny", "bf16")
        listed = {row["model"]: row for row in json.loads(models("list", "--json", **data).stdout)}
        assert (listed["my/tiny"]["here"], listed["my/tiny"]["ready"]) == ("yes", True)
        done = models("forget", "my/tiny", "--files", **data)
        assert done.returncode == 1
        assert (models.folder / "my--tiny" / "model.safetensors").exists()


def test_the_cpu_engine_takes_ids_too(models, shared_machine):
    """A GGUF file of a hub answers under its own name."""
    assert models("pull", "org/gguf", "--engine", "cpu").returncode == 0
    up = shared_machine.up("--ephemeral", "--json", "--model", "org/gguf", **models.environ)
    with up.running() as stack:
        with stack.client() as client:
            answer = client.chat.completions.create(
                model="org/gguf", messages=[{"role": "user", "content": "Hello"}], max_tokens=3
            )
        assert answer.usage.completion_tokens > 0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[engine]\nslotz = 3", "there is no key engine.slotz: allowed are slots"),
        ('[dialect]\nfamily = "elvish"', "dialect.family must be one of deepseek"),
    ],
)
def test_what_is_wrong_with_a_file_ends_the_start(models, tmp_path, text, says):
    """One line with the file's name and what is allowed, and the status of wrong settings."""
    path = tmp_path / "mine.toml"
    path.write_text(f'id = "mine"\npath = "{TINY / "tiny.gguf"}"\n{text}\n')
    done = subprocess.run(
        [sys.executable, "-m", "gpu_worker"],
        capture_output=True,
        text=True,
        env={**os.environ, **models.environ, "FASTRUN_WORKER_MODEL": str(path)},
    )
    assert done.returncode == 2
    assert done.stderr.startswith(f"worker: {path}: ")
    assert done.stderr.count("\n") == 1
    assert says in done.stderr


def test_a_model_that_was_not_pulled_is_told_of(models, shared_machine):
    """With the command that gets it."""
    done = shared_machine.run("up", "--ephemeral", "--model", "Qwen/Qwen3-32B", **models.environ)
    assert done.returncode != 0
    assert "run fastrun model pull Qwen/Qwen3-32B" in done.stderr
