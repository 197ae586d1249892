"""From a request to what an engine takes, or a refusal that says what to do."""

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from fastrun.v1.generation_pb2 import GenerateRequest
from fastrun.v1.worker_pb2 import ModelCard
from gpu_worker import chat
from gpu_worker.chat import ROLES, InvalidRequestError
from gpu_worker.dialect.answer import AnswerParser
from gpu_worker.dialect.chat_template import PromptEncoder, TemplateError
from gpu_worker.dialect.parser import Parser
from gpu_worker.dialect.profile import Profile
from gpu_worker.engine.grammar import Grammar, Json
from gpu_worker.engine.protocol import SamplingParams

MAX_TOKENS_BY_DEFAULT = 16_384
MAX_STOPS = 4
MAX_TOP_LOGPROBS = 20
SEEDS = 1 << 63
# What a template writes around a message or call, at least: many empty ones take time as well.
MARKUP_BYTES = 32

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


class Prompt(msgspec.Struct, frozen=True):
    """What an engine takes, and how to read what it gives back."""

    token_ids: list[int]  # without those that have been generated already
    sampling: SamplingParams
    parser: AnswerParser
    grammar: Grammar | None = None


def check(request: GenerateRequest, *, card: ModelCard) -> None:
    """Look at all that needs no tokenizer.

    Raises:
        InvalidRequestError: with what to change.
    """
    if request.model != card.model:
        raise InvalidRequestError(f"this worker serves {card.model!r}: ask for that model")
    if request.HasField("prompt") and request.messages:
        raise InvalidRequestError("give messages or a prompt, not both")
    if not (request.HasField("prompt") or request.messages):
        raise InvalidRequestError("messages is required")
    if len(request.stop) > MAX_STOPS or not all(request.stop):
        raise InvalidRequestError(f"stop takes up to {MAX_STOPS} texts, none of them empty")
    if request.top_logprobs > MAX_TOP_LOGPROBS:
        raise InvalidRequestError(f"top_logprobs must be between 0 and {MAX_TOP_LOGPROBS}")
    if any(message.role not in ROLES for message in request.messages):
        raise InvalidRequestError("every message needs a role: system, user, assistant or tool")
    # Surely too long, without having to tokenize it: every template writes contents out.
    said = len(request.prompt) + sum(len(message.content) for message in request.messages)
    if said > card.context_length * card.longest_token_bytes:
        raise _too_long(card.context_length, "more")
    for name, least, most in RANGES:
        value = _given(request.sampling, name)
        # Written so that NaN is out of range.
        if value is not None and not least <= value <= most:
            bound = f"at least {least}" if most == math.inf else f"between {least} and {most}"
            raise InvalidRequestError(f"{name} must be {bound}")


def make(
    request: GenerateRequest,
    encoder: PromptEncoder,
    profile: Profile,
    *,
    defaults: SamplingDefaults,
    context_length: int,
    stop_token_ids: tuple[int, ...],
) -> Prompt:
    """Apply the template, tokenize and settle how to sample. Takes time for a long prompt.

    Raises:
        InvalidRequestError: the template refuses, or the prompt leaves no room in the window.
    """
    if request.HasField("prompt"):
        token_ids, parser, grammar = _continued(request, encoder)
    else:
        try:
            token_ids, parser, grammar = _answered(request, encoder, profile, context_length)
        except RecursionError as error:
            raise InvalidRequestError(
                "tools, tool calls and chat_template_kwargs must be nested less deeply"
            ) from error
    room = context_length - len(token_ids)
    if room < 1 or len(request.resume_token_ids) > room:
        raise _too_long(context_length, len(token_ids))
    sampling = _sampling(request, defaults, room=room, stop_token_ids=stop_token_ids)
    return Prompt(token_ids, sampling, parser, grammar)


def size(request: GenerateRequest) -> int:
    """Return about how many bytes of text a prompt is made of, in whichever fields; cheap."""
    messages = request.messages
    count = len(messages) + sum(len(message.tool_calls) for message in messages)
    return request.ByteSize() + count * MARKUP_BYTES


def _continued(
    request: GenerateRequest, encoder: PromptEncoder
) -> tuple[list[int], AnswerParser, Grammar | None]:
    """Read a raw text, whose continuation is content and nothing else."""
    token_ids = encoder.raw(request.prompt)
    if not token_ids:
        raise InvalidRequestError("prompt is empty: this model needs some text to continue")
    schema = chat.schema(request)
    return token_ids, Parser(stops=request.stop), None if schema is None else Json(schema)


def _answered(
    request: GenerateRequest, encoder: PromptEncoder, profile: Profile, context_length: int
) -> tuple[list[int], AnswerParser, Grammar | None]:
    """Read a conversation, and the answer as its model writes it."""
    asked = chat.read(request)
    messages, variables = profile.template_input(asked.messages, asked.shown_tools, asked.effort)
    variables |= profile.efforts.get(asked.effort or "off", {})
    variables |= asked.variables
    try:
        rendered = encoder.render(messages, **variables)
    except TemplateError as error:
        raise InvalidRequestError(str(error)) from error
    # Tokenizing megabytes takes seconds and hundreds of MiB. check() has seen the contents only.
    if encoder.fewest_tokens(rendered) > context_length:
        raise _too_long(context_length, "more")
    thinking = profile.thinking_after(rendered.text)
    grammar = profile.grammar(
        thinking=thinking,
        thinks=profile.asks_to_think(variables),
        schema=asked.schema,
        tools=asked.tools,
        forced=asked.forced,
        several=asked.most_calls is None,
    )
    parser = profile.parser(
        thinking=thinking, tools=asked.tools, most_calls=asked.most_calls, stops=request.stop
    )
    return encoder.token_ids(rendered), parser, grammar


def _too_long(context_length: int, tokens: int | str) -> InvalidRequestError:
    return InvalidRequestError(
        f"this model's context window is {context_length} tokens and the prompt has {tokens}: "
        "shorten the prompt"
    )


def _sampling(
    request: GenerateRequest,
    defaults: SamplingDefaults,
    *,
    room: int,
    stop_token_ids: tuple[int, ...],
) -> SamplingParams:
    """Take each field from the request, else from the model, else the neutral value."""
    wanted = request.sampling

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
        logprobs=request.top_logprobs if request.HasField("top_logprobs") else None,
    )


def _given(sampling: Any, name: str) -> float | None:
    """Return a field of Sampling, None where it is absent."""
    return getattr(sampling, name) if sampling.HasField(name) else None
