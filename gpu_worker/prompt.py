"""From a request to what an engine takes, or a refusal that says what to do."""

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from fastrun.service.errors import ServiceError
from fastrun.v1.error_pb2 import ErrorReason
from fastrun.v1.generation_pb2 import ChatMessage, GenerateRequest, Role, Sampling
from fastrun.v1.worker_pb2 import ModelCard
from gpu_worker.dialect.chat_template import Message, PromptEncoder, TemplateError
from gpu_worker.engine.protocol import SamplingParams

MAX_TOKENS_BY_DEFAULT = 16_384
MAX_STOPS = 4
SEEDS = 1 << 63

ROLES = {
    Role.ROLE_SYSTEM: "system",
    Role.ROLE_USER: "user",
    Role.ROLE_ASSISTANT: "assistant",
    Role.ROLE_TOOL: "tool",
}
# Field of Sampling, least and greatest value.
RANGES: Sequence[tuple[str, float, float]] = (
    ("max_tokens", 1, math.inf),
    ("temperature", 0, 2),
    ("top_p", 0, 1),
    ("top_k", 0, 1000),
    ("min_p", 0, 1),
    ("frequency_penalty", -2, 2),
    ("presence_penalty", -2, 2),
    ("repetition_penalty", 0, 2),
)


class SamplingDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """What a model's generation_config says for fields that a request leaves open."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    repetition_penalty: float = 1.0


class InvalidRequestError(ServiceError):
    """The request is wrong; no worker will do better."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorReason.ERROR_REASON_INVALID_REQUEST, message)


class Prompt(msgspec.Struct, frozen=True):
    """What an engine takes."""

    token_ids: list[int]
    sampling: SamplingParams


def check(request: GenerateRequest, *, card: ModelCard) -> None:
    """Look at all that needs no tokenizer.

    Raises:
        InvalidRequestError: with what to change.
    """
    if request.model != card.model:
        raise InvalidRequestError(f"this worker serves {card.model!r}: ask for that model")
    if not request.messages:
        raise InvalidRequestError("messages is required")
    if len(request.stop) > MAX_STOPS or not all(request.stop):
        raise InvalidRequestError(f"stop takes up to {MAX_STOPS} texts, none of them empty")
    if any(message.role not in ROLES for message in request.messages):
        raise InvalidRequestError("every message needs a role: system, user, assistant or tool")
    # Surely too long, without having to tokenize it.
    if characters(request) > card.context_length * card.longest_token_bytes:
        raise InvalidRequestError(
            f"this model's context window is {card.context_length} tokens and the prompt has "
            "more: shorten the prompt"
        )
    for name, least, most in RANGES:
        value = _given(request.sampling, name)
        # Written so that NaN is out of range.
        if value is not None and not least <= value <= most:
            bound = f"at least {least}" if most == math.inf else f"between {least} and {most}"
            raise InvalidRequestError(f"{name} must be {bound}")


def make(
    request: GenerateRequest,
    encoder: PromptEncoder,
    *,
    defaults: SamplingDefaults,
    context_length: int,
    stop_token_ids: tuple[int, ...],
) -> Prompt:
    """Apply the template, tokenize and settle how to sample. Takes time for a long prompt.

    Raises:
        InvalidRequestError: the template refuses, or the prompt leaves no room in the window.
    """
    try:
        token_ids = encoder.encode([_message(message) for message in request.messages])
    except TemplateError as error:
        raise InvalidRequestError(str(error)) from error
    room = context_length - len(token_ids)
    if room < 1:
        raise InvalidRequestError(
            f"this model's context window is {context_length} tokens and the prompt has "
            f"{len(token_ids)}: shorten the prompt"
        )
    sampling = _sampling(request.sampling, defaults, room=room, stop_token_ids=stop_token_ids)
    return Prompt(token_ids, sampling)


def characters(request: GenerateRequest) -> int:
    """Return how long the texts of the conversation are; cheap."""
    return sum(len(message.content) for message in request.messages)


def _message(message: ChatMessage) -> Message:
    # Templates print an absent content as "None".
    return {"role": ROLES[message.role], "content": message.content}


def _sampling(
    wanted: Sampling, defaults: SamplingDefaults, *, room: int, stop_token_ids: tuple[int, ...]
) -> SamplingParams:
    """Take each field from the request, else from the model, else the neutral value."""

    def given(name: str, default: float) -> float:
        value = _given(wanted, name)
        return default if value is None else value

    return SamplingParams(
        max_tokens=min(room, int(given("max_tokens", MAX_TOKENS_BY_DEFAULT))),
        temperature=given("temperature", defaults.temperature),
        top_p=given("top_p", defaults.top_p),
        top_k=int(given("top_k", defaults.top_k)),
        min_p=given("min_p", 0.0),
        frequency_penalty=given("frequency_penalty", 0.0),
        presence_penalty=given("presence_penalty", 0.0),
        repetition_penalty=given("repetition_penalty", defaults.repetition_penalty),
        seed=wanted.seed % SEEDS,
        stop_token_ids=stop_token_ids,
    )


def _given(sampling: Any, name: str) -> float | None:
    """Return a field of Sampling, None where it is absent."""
    return getattr(sampling, name) if sampling.HasField(name) else None
