"""The worker's settings: FASTRUN_WORKER_* or table [worker]."""

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec

from fastrun.service import tracing
from fastrun.service.config import (
    MOST,
    Address,
    AddressOrNone,
    Count,
    LogLevel,
    Positive,
    Seconds,
    SomeSeconds,
)
from fastrun.service.tls import TlsSettings


class Config(TlsSettings, frozen=True, kw_only=True):
    """All settings of one worker."""

    # host:port for edges; port 0 takes a free one.
    listen: Address = "127.0.0.1:7003"
    # host:port of /metrics, /healthz and /readyz.
    admin_listen: Address = "127.0.0.1:9103"
    log_level: LogLevel = "info"
    # How long running requests may take to finish after SIGTERM, or when an operator drains the
    # worker without a deadline; then those that can go on at other workers, and all others fail.
    drain_s: Seconds = 20.0
    # How long all of it may take after SIGTERM; so longer than drain_s.
    grace_s: Seconds = 30.0

    # Where traces go, as for the edge.
    otlp_endpoint: tracing.Endpoint = ""
    # Trace nothing, as for the edge.
    otlp_disabled: tracing.Disabled = False

    # host:port of every scheduler; the worker keeps a session with each.
    scheduler_addresses: list[Address] = msgspec.field(default_factory=list)
    # host:port where edges reach this worker; default: listen, with the real port; where that is
    # 0.0.0.0, the address by which the worker reaches its schedulers.
    advertise_address: AddressOrNone = ""
    # host:port of the auth service, which renews the certificate of a worker that has joined by a
    # token; default: whoever made the certificate renews it.
    renew_address: AddressOrNone = ""
    # Stays the same over restarts; default: host name and port.
    worker_id: str = ""
    # Take requests without a lease, and register nowhere.
    standalone: bool = False

    engine: Literal["cpu", "tensorrt-llm", "scripted"] = "cpu"
    # An id that `fastrun model list --all` shows, a model file, or NAME=PATH with a GGUF file or an
    # OpenVINO folder (CPU engine, whose default is SmolLM2), or a folder in Hugging Face's format
    # (TensorRT-LLM).
    model: str = ""
    # Folder of pulled models and of model files; default: in the user's cache folder.
    models: str = ""
    # How many requests run at once.
    slots: Positive = 32

    # CPU engine: f32 gives the same answer alone, batched, cached and resumed; fast
    # multiplies in 8-bit integers, and is the same alone and batched.
    precision: Literal["f32", "fast"] = "f32"
    # CPU engine: upper bound of the KV cache, whose memory is taken as it is first used.
    kv_cache_mib: Positive = 1024
    # CPU engine: threads of the network; 0 for one per core.
    threads: Count = 0
    # CPU engine: folder of converted models; default: in the user's cache folder.
    cache: str = ""

    # TensorRT-LLM: how many GPUs share each layer.
    tensor_parallel: Positive = 1
    # TensorRT-LLM: how many groups of GPUs the layers are spread over.
    pipeline_parallel: Positive = 1
    # TensorRT-LLM: the window in tokens, if it shall be less than the model's; 0 for the model's.
    context_length: Count = 0
    # TensorRT-LLM: tokens that one step computes at most; longer prompts take several steps.
    tokens_per_step: Positive = 8192
    # TensorRT-LLM: share of the GPU's memory, once the weights are loaded, that the KV cache takes.
    kv_cache_fraction: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.85
    # TensorRT-LLM: number format of the KV cache; fp8 holds twice as much.
    kv_cache_dtype: Literal["auto", "fp8"] = "auto"
    # TensorRT-LLM: whether prompts that begin alike share what the KV cache holds of them.
    prefix_cache: bool = True
    # TensorRT-LLM: after so long without a token for anybody the engine counts as dead.
    stalled_s: SomeSeconds = 60.0
    # Drain and start anew when process and children hold more memory; 0 for a bound of its own
    # that TensorRT-LLM has, and none for other engines.
    recycle_mib: Count = 0

    # Scripted engine: pace of each stream; 0 is as fast as it goes.
    scripted_tokens_per_s: Annotated[float, msgspec.Meta(ge=0, le=MOST)] = 50.0
    # Scripted engine: tokens of prompt that it reads each second; 0 is as fast as it goes.
    scripted_prompt_tokens_per_s: Annotated[float, msgspec.Meta(ge=0, le=MOST)] = 0.0
    # Scripted engine: the window, in tokens.
    scripted_context: Positive = 8192

    @property
    def peer_addresses(self) -> Sequence[str]:
        """See TlsSettings."""
        advertised = (self.advertise_address,) if self.advertise_address else ()
        renews = (self.renew_address,) if self.renew_address else ()
        return (self.listen, *advertised, *self.scheduler_addresses, *renews)
