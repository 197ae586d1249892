"""A stand-in for TensorRT-LLM: the same names and rules, and no model. See ../README.md."""

from tensorrt_llm import _contract
from tensorrt_llm.llmapi.llm import LLM
from tensorrt_llm.sampling_params import SamplingParams

__version__ = _contract.VERSION

__all__ = ["LLM", "SamplingParams", "__version__"]
