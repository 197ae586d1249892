"""Every keyword that the adapter passes to TensorRT-LLM is known from elsewhere.

The library cannot be installed here. NVIDIA's own worker for the same version can be: it is read,
never run. What it does not pass is listed, with the place where it is written.
"""

import ast
import functools
import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from standin_engine import installed

from gpu_worker.engine.protocol import SamplingParams
from gpu_worker.engine.tensorrt_llm import arguments, contract, library, sampling
from gpu_worker.engine.tensorrt_llm.arguments import EngineArguments

DYNAMO = Path(sys.prefix) / "dynamo" / "dynamo"
ADAPTER = Path(importlib.util.find_spec("gpu_worker.engine.tensorrt_llm").origin).parent

needs_dynamo = pytest.mark.skipif(
    not DYNAMO.is_dir(), reason="needs requirements/dynamo.txt: see CONTRIBUTING.md"
)

SAMPLING = "tensorrt_llm/sampling_params.py, and api_stability's table of SamplingParams"
# Keywords of ours that NVIDIA's worker does not pass, and where each is written.
ELSEWHERE = {
    "SamplingParams": {
        "end_id": SAMPLING,
        "use_beam_search": SAMPLING,
        "include_stop_str_in_output": "executor/result.py: without it, stop tokens are cut off",
        "pad_id": SAMPLING,
        "prompt_ignore_length": "docs/source/features/sampling.md, 1.3: excludes the first tokens "
        "of the prompt from presence and frequency counts",
        "add_special_tokens": SAMPLING,
        "skip_special_tokens": SAMPLING,
        "exclude_input_from_output": SAMPLING,
    },
    "LLM": {
        "enable_chunked_prefill": "llmapi/llm_args.py, and api_stability's table of LLM",
        "stream_interval": "llmapi/llm_args.py: tokens of each streamed response",
        "num_postprocess_workers": "llmapi/llm_args.py; NVIDIA's worker takes it out where it is set",
        "enable_iter_req_stats": "llmapi/llm_args.py",
    },
    "KvCacheConfig": {
        "enable_block_reuse": "llmapi/llm_args.py; NVIDIA's worker reads it",
        "dtype": "llmapi/llm_args.py",
    },
    "GuidedDecodingParams": {},
    "generate_async": {},
}


def trees(*places: Path) -> Iterable[ast.AST]:
    for place in places:
        for path in [place] if place.is_file() else sorted(place.rglob("*.py")):
            if "tests" not in path.parts:
                yield _parsed(path)


@functools.cache
def _parsed(path: Path) -> ast.AST:
    return ast.parse(path.read_text(encoding="utf-8"))


def name_of(function: ast.expr) -> str | None:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else None


def called_with(name: str, *places: Path) -> set[str]:
    """Return the keywords of all calls of a function."""
    return {
        keyword.arg
        for tree in trees(*places)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and name_of(node.func) == name
        for keyword in node.keywords
        if keyword.arg
    }


def keys_of(name: str, *places: Path) -> set[str]:
    """Return the keys of dictionaries that are assigned to a name, or stand under it in another."""
    found: set[str] = set()
    for tree in trees(*places):
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    if isinstance(target, ast.Name) and target.id == name:
                        found |= _keys(node.value)
                    if isinstance(target, ast.Subscript) and name_of(target.value) == name:
                        found |= _texts([target.slice])
            if isinstance(node, ast.Dict):
                for key, value in zip(node.keys, node.values, strict=True):
                    if name in _texts([key]):
                        found |= _keys(value)
    return found


def set_on(name: str, *places: Path) -> set[str]:
    """Return the attributes of an object of that name that are set or asked for."""
    found: set[str] = set()
    for tree in trees(*places):
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and name in (name_of(node.value) or ""):
                found.add(node.attr)
            if isinstance(node, ast.Call) and name_of(node.func) in {"setattr", "hasattr"}:
                is_meant = name in (name_of(node.args[0]) or "")
                found |= _texts(node.args[1:2]) if is_meant else set()
    return found


def _keys(value: ast.expr | None) -> set[str]:
    return _texts(value.keys) if isinstance(value, ast.Dict) else set()


def _texts(nodes: Iterable[ast.expr | None]) -> set[str]:
    return {
        node.value
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def ours() -> dict[str, set[str]]:
    with installed():
        known, _ = library.load()
        constructor = arguments.keywords(
            "folder", EngineArguments(), known, slots=1, context_length=8
        )
        asked = SamplingParams(max_tokens=1)
        params = sampling.keywords(asked, known.features, prompt_tokens=1, resumed=0, guide=None)
    return {
        "SamplingParams": set(params),
        "LLM": set(constructor),
        "KvCacheConfig": called_with("kv_cache_config", ADAPTER),
        "GuidedDecodingParams": called_with("guided_decoding_params", ADAPTER),
        "generate_async": called_with("generate_async", ADAPTER),
    }


def theirs() -> dict[str, set[str]]:
    worker = DYNAMO / "trtllm"
    handler = worker / "request_handlers" / "handler_base.py"
    frontends = DYNAMO / "frontend"
    return {
        "SamplingParams": called_with("SamplingParams", worker)
        | set_on("sampling_params", worker)
        | keys_of("overrides", handler)
        | keys_of("sampling_options", frontends),  # passed on as they are
        "LLM": keys_of("arg_map", worker / "workers"),
        "KvCacheConfig": called_with("KvCacheConfig", worker),
        "GuidedDecodingParams": called_with("GuidedDecodingParams", worker),
        "generate_async": keys_of("generate_kwargs", handler),
    }


@pytest.mark.parametrize("where", ELSEWHERE)
def test_every_keyword_is_in_the_contract(where):
    """What is passed is what `fastrun worker verify` looks for."""
    passed = ours()[where]
    assert passed
    assert passed <= contract.read()[where].keys()


@needs_dynamo
@pytest.mark.parametrize("where", ELSEWHERE)
def test_every_keyword_is_known_from_elsewhere(where):
    """NVIDIA's worker passes it as well, or the place where it is written is listed."""
    passed, known = ours()[where], theirs()[where]
    assert known, "nothing was read"
    assert passed - known == ELSEWHERE[where].keys()


@needs_dynamo
def test_the_version_is_the_one_that_we_are_written_for():
    """NVIDIA's worker asks for the same version of the library."""
    [metadata] = DYNAMO.parent.glob("ai_dynamo-*.dist-info/METADATA")
    target = contract.read()["target"]
    assert f"tensorrt-llm=={target}" in metadata.read_text(encoding="utf-8")


@needs_dynamo
def test_methods_are_those_that_it_calls():
    """So that private ones of the library are no secret of ours."""
    used = set_on("llm", DYNAMO / "trtllm") | set_on("_llm", DYNAMO / "trtllm")
    called = {
        text
        for tree in trees(DYNAMO / "trtllm")
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and name_of(node.func) == "getattr"
        for text in _texts(node.args[1:2])
    }
    assert set(contract.read()["LLM_methods"]) <= used | called
    assert {"_executor", "_fatal_error", "get_kv_cache_capacity"} <= used | called
