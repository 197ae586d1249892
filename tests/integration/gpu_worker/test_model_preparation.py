"""From a model file to something the engine loads, with the real converter."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from engine_outputs import outputs_of

from gpu_worker.engine.cpu.loading import load_cpu_engine
from gpu_worker.engine.cpu.model_source import ModelSource, model_source
from gpu_worker.engine.cpu.preparation import prepare
from gpu_worker.engine.errors import ModelError
from gpu_worker.engine.protocol import SamplingParams

TINY = Path(__file__).parents[2] / "models/tiny"
GGUF = TINY / "tiny.gguf"


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A cache folder with a space in its long name."""
    return tmp_path_factory.mktemp("a folder whose path is long " + 80 * "x")


@pytest.fixture(scope="module")
def prepared(cache):
    return prepare(ModelSource("tiny", GGUF), cache=cache)


@pytest.fixture(scope="module")
def unlowered(cache):
    return prepare(ModelSource("tiny", GGUF), precision="fast", cache=cache)


async def greet(model):
    engine = load_cpu_engine(model)
    sampling = SamplingParams(max_tokens=6, temperature=0)
    tokens = [
        token
        async for output in outputs_of(engine, [1, 20, 30, 40], sampling, cache_salt="")
        for token in output.token_ids
    ]
    await engine.close()
    return tokens


def test_converts_once_and_says_what_it_does(tmp_path, monkeypatch):
    """The first time phases are reported; the second time nothing is converted."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    phases = []
    source = model_source(f"my/tiny={GGUF}")
    first = prepare(source, progress=lambda phase, _: phases.append(phase))
    assert list(dict.fromkeys(phases)) == [
        "checking the model's weights",
        "reading the model's vocabulary",
        "converting the model",
    ]
    phases.clear()
    assert prepare(source, progress=lambda phase, _: phases.append(phase)) == first
    assert set(phases) == {"checking the model's weights"}
    assert (first.name, first.context_length, first.eos_ids) == ("my/tiny", 4096, (0, 2))
    assert first.ir.is_relative_to(tmp_path / "fastrun" / "models")


def test_nothing_but_the_result_is_kept(prepared):
    """A cache entry holds the graph, its weights, the tokenizer, the facts and the marker."""
    assert sorted(path.name for path in prepared.ir.parent.iterdir()) == [
        "complete.json",
        "facts.json",
        "heads.json",
        "openvino_model.bin",
        "openvino_model.xml",
        "tokenizer.json",
    ]


async def test_openvino_folder_is_used_where_it_is(prepared, unlowered, tmp_path):
    """A folder in OpenVINO's format needs no conversion and gives the same answers."""
    for path in (unlowered.ir, unlowered.ir.with_suffix(".bin"), unlowered.tokenizer):
        shutil.copy(path, tmp_path)
    for name in ("config.json", "chat_template.jinja"):
        shutil.copy(TINY / name, tmp_path)
    folder = prepare(ModelSource("folder", tmp_path), cache=tmp_path / "unused")
    assert not (tmp_path / "unused").exists()
    assert folder.ir == tmp_path / "openvino_model.xml"
    assert await greet(folder) == await greet(prepared)


@pytest.mark.parametrize("missing", [40, 2_000_000])
def test_weights_that_are_cut_short(cache, tmp_path, missing):
    """A GGUF file whose weights are incomplete is refused and leaves nothing in the cache."""
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(GGUF.read_bytes()[:-missing])
    before = {path for path in cache.iterdir() if path.is_dir()}
    with pytest.raises(ModelError, match=r"broken\.gguf is damaged"):
        prepare(ModelSource("broken", broken), cache=cache)
    assert before == {path for path in cache.iterdir() if path.is_dir()}


def test_weights_that_are_not_the_expected_ones(cache):
    """A file that should be known and is another is refused."""
    with pytest.raises(ModelError, match="damaged"):
        prepare(ModelSource("tiny", GGUF, sha256="0" * 64), cache=cache)


def test_file_that_is_no_model(cache, tmp_path):
    """Something else than a model is refused in one sentence that names it."""
    path = tmp_path / "notes.txt"
    path.write_text("hello")
    with pytest.raises(ModelError, match=r"^model 'notes' cannot be used: .* is not a GGUF file$"):
        prepare(ModelSource("notes", path), cache=cache)


def test_converter_dies_with_its_parent(tmp_path):
    """The converter ends when the pipe from its parent does."""
    shutil.copy(GGUF, tmp_path / "model.gguf")
    module = ["-m", "gpu_worker.engine.cpu.conversion"]
    done = subprocess.run(
        [sys.executable, *module, tmp_path / "model.gguf", "exact"],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (1, b"")


def test_openvino_reports_nothing():
    """OpenVINO's telemetry is not there when OpenVINO is imported."""
    program = (
        "import sys; from gpu_worker.engine.cpu.runtime import import_openvino; import_openvino();"
        "assert sys.modules['openvino_telemetry'] is None;"
        "from openvino.tools.ovc import telemetry_utils;"
        "assert telemetry_utils.tm.__name__.endswith('telemetry_stub')"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_preparation_needs_no_engine():
    """Looking for a model imports neither OpenVINO nor numpy nor gRPC."""
    program = (
        "import sys; import gpu_worker.engine.cpu.preparation, gpu_worker.engine.scripted;"
        "assert not {'openvino', 'openvino_genai', 'numpy', 'grpc'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_scripted_engine_needs_no_package():
    """The scripted engine runs where no model library is installed."""
    program = (
        "import sys; sys.modules.update(dict.fromkeys(['openvino', 'numpy', 'tokenizers']));"
        "import gpu_worker.engine.scripted"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


CONVERT = """
import sys
from pathlib import Path

from gpu_worker.engine.cpu.conversion import convert

convert(Path(sys.argv[1]), Path(sys.argv[2]), "fast")
"""


def test_converts_what_may_only_be_read(tmp_path):
    """A file that the worker may not write, such as one of its image, is converted all the same."""
    gguf, result = tmp_path / "tiny.gguf", tmp_path / "result"
    shutil.copyfile(GGUF, gguf)
    gguf.chmod(0o444)
    result.mkdir()
    # Root may write whatever it likes, unless that is taken from it.
    humble = ["setpriv", "--bounding-set=-dac_override"] if os.geteuid() == 0 else []
    command = [*humble, sys.executable, "-c", CONVERT, str(gguf), str(result)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in result.iterdir()) == [
        "openvino_model.bin",
        "openvino_model.xml",
    ]
    assert gguf.read_bytes() == GGUF.read_bytes()
