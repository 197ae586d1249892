"""What the adapter relies on of TensorRT-LLM, compared with what is installed.

The library cannot be installed where this project is tested. So what the adapter needs stands in a
file, tests hold the adapter to it, and the image's build holds the library to it.
"""

import dataclasses
import importlib
import inspect
import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from gpu_worker.engine.tensorrt_llm.features import ordered

FILE = Path(__file__).with_name("contract.json")
REQUIRED, MADE = "<required>", "<factory>"  # no default, and one that is made anew each time

Contract = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Difference:
    """One thing that is not as the contract says."""

    name: str
    problem: str
    is_missing: bool = True

    def __str__(self) -> str:
        """Return it as a line for people."""
        return f"{self.name}: {self.problem}"


def read() -> Contract:
    """Return the contract."""
    contract: Contract = json.loads(FILE.read_text(encoding="utf-8"))
    return contract


def differences(contract: Contract, version: str) -> list[Difference]:
    """Compare the installed library with the contract.

    Args:
        contract: as read.
        version: of the library; names that came later may be missing.
    """
    is_old = ordered(version) < ordered("1.3.0rc0")
    since: Mapping[str, list[str]] = contract["since_1_3"] if is_old else {}
    return [
        difference
        for difference in _all(contract)
        if difference.name.partition(".")[2] not in since.get(difference.name.partition(".")[0], ())
    ]


def _all(contract: Contract) -> Iterator[Difference]:
    params, api = "tensorrt_llm.sampling_params", "tensorrt_llm.llmapi"
    for module, name in (
        (params, "SamplingParams"),
        (params, "GuidedDecodingParams"),
        (api, "KvCacheConfig"),
    ):
        yield from _fields(name, contract[name], module, name)
    yield from _fields("LLM", contract["LLM"], f"{api}.llm_args", "TorchLlmArgs")
    yield from _llm(contract)
    yield from _results(contract)
    for module, names in contract["errors"].items():
        found = _import(module)
        for name in names:
            if not hasattr(found, name):
                yield Difference(f"{module}.{name}", "missing")


def _llm(contract: Contract) -> Iterator[Difference]:
    llm = getattr(_import("tensorrt_llm"), "LLM", None)
    for name in contract["LLM_methods"]:
        if not hasattr(llm, name):
            yield Difference(f"LLM.{name}", "missing")
    method = getattr(llm, "generate_async", None)
    if method is None:
        return
    parameters = inspect.signature(inspect.unwrap(method)).parameters
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return  # a wrapper that tells nothing
    defaults = {name: _parameter_default(each) for name, each in parameters.items()}
    yield from _compared("generate_async", contract["generate_async"], defaults)


def _results(contract: Contract) -> Iterator[Difference]:
    module = _import("tensorrt_llm.executor.result")
    output = getattr(module, "CompletionOutput", None)
    yield from _members("CompletionOutput", contract["CompletionOutput"], output)
    result = getattr(module, "GenerationResult", None)
    yield from _members("RequestOutput", contract["RequestOutput"]["members"], result)


def _members(where: str, names: Collection[str], kind: Any) -> Iterator[Difference]:
    known = {*dir(kind), *(_defaults(kind) if kind is not None else ())}
    for name in names:
        if name not in known:
            yield Difference(f"{where}.{name}", "missing")


def _fields(where: str, wanted: Mapping[str, Any], module: str, name: str) -> Iterator[Difference]:
    kind = getattr(_import(module), name, None)
    if kind is None:
        yield Difference(f"{module}.{name}", "missing")
    else:
        yield from _compared(where, wanted, _defaults(kind))


def _compared(
    where: str, wanted: Mapping[str, Any], found: Mapping[str, Any]
) -> Iterator[Difference]:
    for name, default in wanted.items():
        if name not in found:
            yield Difference(f"{where}.{name}", "missing")
        elif not _is_same(default, found[name]):
            problem = f"its default is {found[name]!r} and was {default!r}"
            yield Difference(f"{where}.{name}", problem, is_missing=False)


def _is_same(wanted: Any, found: Any) -> bool:
    if MADE in (wanted, found):
        return True
    # An enumeration's member is as good as its value.
    return bool(wanted == found or wanted == getattr(found, "value", found))


def _defaults(kind: Any) -> dict[str, Any]:
    """Return the fields of a pydantic model or a dataclass, with their defaults."""
    models = getattr(kind, "model_fields", None)
    if models is not None:
        return {name: _model_default(field) for name, field in models.items()}
    if not dataclasses.is_dataclass(kind):
        return {}
    return {
        field.name: REQUIRED if field.default is dataclasses.MISSING else field.default
        for field in dataclasses.fields(kind)
    }


def _model_default(field: Any) -> Any:
    if field.is_required():
        return REQUIRED
    return MADE if field.default_factory is not None else field.default


def _parameter_default(parameter: inspect.Parameter) -> Any:
    return REQUIRED if parameter.default is parameter.empty else parameter.default


def _import(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        return None
