"""The contract, and what is told where the library differs from it."""

import importlib
import re
import sys

import pydantic
import pytest
from standin_engine import installed

from gpu_worker.engine.tensorrt_llm import contract, library
from gpu_worker.engine.tensorrt_llm.errors import StartupError
from gpu_worker.engine.tensorrt_llm.verify import verify

TARGET = contract.read()["target"]


def told():
    lines = []
    return verify(lines.append), lines


@pytest.mark.parametrize("version", ["1.2.1", TARGET, "1.4.0rc1"])
def test_versions_that_have_everything_pass(version):
    """1.2 may lack what came later, and is said to ignore things."""
    with installed(FASTRUN_STANDIN_VERSION=version):
        passed, lines = told()
        assert passed
        assert lines[0].startswith(f"TensorRT-LLM {version} has all")
        lacking = {"penalties", "min_p", "seeds"} if version == "1.2.1" else set()
        assert {line.split()[2].rstrip(":") for line in lines[1:]} == lacking
        found, differences = library.load()
        assert (found.features.version, differences) == (version, [])


def test_every_difference_is_told():
    """Names that are missing and defaults that have changed, all at once."""
    without = "SamplingParams.seed,LLM.stream_interval,generate_async.cache_salt"
    with installed(FASTRUN_STANDIN_WITHOUT=without):
        result = importlib.import_module("tensorrt_llm.executor.result")
        del result.GenerationResult.abort
        del importlib.import_module("tensorrt_llm.executor.utils").RequestError
        args = importlib.import_module("tensorrt_llm.llmapi.llm_args")
        args.KvCacheConfig = pydantic.create_model(
            "KvCacheConfig",
            enable_block_reuse=(bool, False),
            free_gpu_memory_fraction=(float, 0.9),
            dtype=(str, ...),
            tokens_per_block=(list, pydantic.Field(default_factory=list)),
        )
        importlib.import_module("tensorrt_llm.llmapi").KvCacheConfig = args.KvCacheConfig
        passed, lines = told()
        assert not passed
        assert lines == [
            "SamplingParams.seed: missing",
            "KvCacheConfig.enable_block_reuse: its default is False and was True",
            "KvCacheConfig.dtype: its default is '<required>' and was 'auto'",
            "LLM.stream_interval: missing",
            "generate_async.cache_salt: missing",
            "RequestOutput.abort: missing",
            "tensorrt_llm.executor.utils.RequestError: missing",
        ]


def test_a_worker_does_not_start_without_what_it_needs():
    """What would fail at the first request fails at the start, with a list."""
    with (
        installed(FASTRUN_STANDIN_WITHOUT="SamplingParams.seed,LLM.stream_interval"),
        pytest.raises(StartupError, match=r"seed: missing; LLM\.stream_interval: missing"),
    ):
        library.load()


def test_a_changed_default_is_no_reason_not_to_start():
    """The adapter leaves nothing to defaults."""
    with installed():
        params = importlib.import_module("tensorrt_llm.sampling_params").SamplingParams
        params.__dataclass_fields__["max_tokens"].default = 64
        _, differences = library.load()
        assert [str(each) for each in differences] == [
            "SamplingParams.max_tokens: its default is 64 and was 32"
        ]


@pytest.mark.parametrize(
    ("version", "reason"), [("1.2.0", r"1\.2\.0 is too old: 1\.2\.1"), ("dev", "is no version")]
)
def test_versions_that_are_too_old_are_named(version, reason):
    """One sentence says which version it needs, at the start and before."""
    with installed(FASTRUN_STANDIN_VERSION=version):
        with pytest.raises(StartupError, match=reason):
            library.load()
        passed, [line] = told()
        assert not passed
        assert re.search(reason, line)


def test_a_missing_library_is_one_sentence(monkeypatch):
    """Where it can be had is said."""
    monkeypatch.setitem(sys.modules, "tensorrt_llm", None)
    with pytest.raises(StartupError, match="start the worker in NVIDIA's image"):
        library.load()
    passed, [line] = told()
    assert not passed
    assert "cannot be imported here" in line


def test_its_maker_is_told_nothing():
    """Before it is imported, it is told to report nothing; the stand-in insists on that."""
    with installed() as patch:
        patch.delenv("TRTLLM_NO_USAGE_STATS")
        library.load()


def test_a_wrapped_function_tells_nothing():
    """A signature that takes anything is no difference."""
    with installed():
        llm = importlib.import_module("tensorrt_llm").LLM
        assert contract.differences(contract.read(), TARGET) == []
        llm.generate_async = lambda self, *args, **keywords: (self, args, keywords)
        assert contract.differences(contract.read(), TARGET) == []
        del llm.generate_async
        assert [str(each) for each in contract.differences(contract.read(), TARGET)] == [
            "LLM.generate_async: missing"
        ]
