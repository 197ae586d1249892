"""The installed TensorRT-LLM: the one place that imports it."""

import dataclasses
import importlib
import os
from typing import Any

import msgspec

from gpu_worker.engine.tensorrt_llm import contract, features
from gpu_worker.engine.tensorrt_llm.contract import Difference
from gpu_worker.engine.tensorrt_llm.errors import StartupError
from gpu_worker.engine.tensorrt_llm.features import Features

# From 1.3 on it reports how it is used to its maker unless this is set before it is imported.
NO_TELEMETRY = {"TRTLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}


class Library(msgspec.Struct, frozen=True, kw_only=True):
    """What the adapter needs of it."""

    features: Features
    llm: Any
    sampling_params: Any
    guided_decoding_params: Any
    kv_cache_config: Any
    request_error: type[BaseException]


def load() -> tuple[Library, list[Difference]]:
    """Import TensorRT-LLM; takes many seconds.

    Returns:
        It, and where it differs from what the adapter was written for without lacking anything.

    Raises:
        StartupError: it is missing, too old, or lacks what the adapter needs.
    """
    os.environ.update(NO_TELEMETRY)
    try:
        package = importlib.import_module("tensorrt_llm")
    except ImportError as error:
        raise StartupError(
            "TensorRT-LLM is missing: start the worker in NVIDIA's image for it "
            f"({type(error).__name__}: {str(error)[:200]})"
        ) from error
    version = str(package.__version__)
    try:
        features.check(version)
    except ValueError as error:
        raise StartupError(f"TensorRT-LLM: {error}") from error
    differences = contract.differences(contract.read(), version)
    if missing := [str(each) for each in differences if each.is_missing]:
        raise StartupError(f"TensorRT-LLM {version} lacks what is needed: {'; '.join(missing)}")
    return _library(package, version), differences


def _library(package: Any, version: str) -> Library:
    params = importlib.import_module("tensorrt_llm.sampling_params")
    fields = [field.name for field in dataclasses.fields(params.SamplingParams)]
    return Library(
        features=features.of_version(version, fields),
        llm=package.LLM,
        sampling_params=params.SamplingParams,
        guided_decoding_params=params.GuidedDecodingParams,
        kv_cache_config=importlib.import_module("tensorrt_llm.llmapi").KvCacheConfig,
        request_error=importlib.import_module("tensorrt_llm.executor.utils").RequestError,
    )
