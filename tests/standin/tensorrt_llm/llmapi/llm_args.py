"""The constructor's arguments."""

from tensorrt_llm._contract import record

KvCacheConfig = record("KvCacheConfig")
TorchLlmArgs = record("LLM")
