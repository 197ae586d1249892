"""The public API."""

from tensorrt_llm.llmapi.llm_args import KvCacheConfig

__all__ = ["KvCacheConfig"]
