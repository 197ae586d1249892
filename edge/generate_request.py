"""What workers are asked to generate: the one place where the public API and the proto meet."""

import hashlib
from collections.abc import Iterable, Sequence

import msgspec

from edge.json_schema import to_json
from edge.openai_schema import (
    ChatCompletionRequest,
    CompletionRequest,
    GenerationRequest,
    NamedTool,
)
from edge.openai_schema import Message as Turn
from edge.openai_schema import ResponseFormat as WantedFormat
from edge.prefix_blocks import UNKNOWN, PrefixBlocks, of_conversation, of_prompts, tokens_of
from fastrun.v1.generation_pb2 import (
    ChatMessage,
    GenerateRequest,
    ReasoningEffort,
    ResponseFormat,
    Role,
    Sampling,
    Tool,
    ToolCall,
    ToolChoice,
    ToolChoiceMode,
    Usage,
)

SEEDS = 2**63

# Most answers are shorter than what they may have at most.
ANSWER_ESTIMATE = 1024

ROLES = {
    "system": Role.ROLE_SYSTEM,
    "developer": Role.ROLE_SYSTEM,
    "user": Role.ROLE_USER,
    "assistant": Role.ROLE_ASSISTANT,
    "tool": Role.ROLE_TOOL,
}
EFFORTS = {
    None: ReasoningEffort.REASONING_EFFORT_UNSPECIFIED,
    "none": ReasoningEffort.REASONING_EFFORT_NONE,
    "low": ReasoningEffort.REASONING_EFFORT_LOW,
    "medium": ReasoningEffort.REASONING_EFFORT_MEDIUM,
    "high": ReasoningEffort.REASONING_EFFORT_HIGH,
}
MODES = {
    "none": ToolChoiceMode.TOOL_CHOICE_MODE_NONE,
    "auto": ToolChoiceMode.TOOL_CHOICE_MODE_AUTO,
    "required": ToolChoiceMode.TOOL_CHOICE_MODE_REQUIRED,
}


class Batch(msgspec.Struct, frozen=True):
    """The generations of one request, by index: the choices of the first prompt come first."""

    common: GenerateRequest
    """What all have in common."""
    seed: int
    """Of the request; each generation has one that derives from it."""
    prompts: Sequence[str] = ()
    """Raw texts, each continued for itself; none with messages."""
    choices: int = 1
    """Of each prompt."""
    has_own_seed: bool = False
    """The client chose it: then a prompt is answered alike alone and in a list."""
    prompt_bytes: int = 0
    """Of all prompts."""
    prefix: PrefixBlocks = UNKNOWN
    """Of the prompt that all generations have."""

    @property
    def size(self) -> int:
        """How many generations there are."""
        return max(1, len(self.prompts)) * self.choices

    @property
    def token_estimate(self) -> int:
        """What all of them may use, for the limits."""
        sampling = self.common.sampling
        limit = sampling.max_tokens if sampling.HasField("max_tokens") else ANSWER_ESTIMATE
        answer = min(limit, ANSWER_ESTIMATE)
        return tokens_of(self.prompt_bytes) + answer * self.size

    def request(
        self, generation: int, lease: bytes, *, resume_token_ids: Iterable[int] = ()
    ) -> GenerateRequest:
        """Return the request of one; it is written over by the next call.

        Args:
            generation: its index.
            lease: of the slot that it was granted.
            resume_token_ids: what another worker has generated of it.
        """
        request = self.common
        request.generation = generation
        request.lease = lease
        del request.resume_token_ids[:]
        request.resume_token_ids.extend(resume_token_ids)
        choice = generation % self.choices if self.has_own_seed else generation
        request.sampling.seed = seed_of(self.seed, choice)
        if self.prompts:
            request.prompt = self.prompts[generation // self.choices]
        return request

    def usage(self, usages: Sequence[Usage]) -> Usage:
        """Add up what all have used, in the order of their indices: each prompt counts once."""
        if len(usages) == 1:
            return usages[0]
        firsts = usages[:: self.choices]
        return Usage(
            prompt_tokens=sum(each.prompt_tokens for each in firsts),
            cached_tokens=sum(each.cached_tokens for each in firsts),
            completion_tokens=sum(each.completion_tokens for each in usages),
            reasoning_tokens=sum(each.reasoning_tokens for each in usages),
        )


def seed_of(seed: int, index: int) -> int:
    """Derive the seed of one of several generations: they differ, and the first keeps its own."""
    if index == 0:
        return seed
    digest = hashlib.blake2b(b"%d %d" % (seed, index), digest_size=8).digest()
    return int.from_bytes(digest, "big") % SEEDS


def of_chat(
    chat: ChatCompletionRequest, /, *, request_id: str, cache_salt: str, seed: int
) -> Batch:
    """Build the generations of a chat completion.

    Args:
        chat: what the client asks for.
        request_id: of the edge.
        cache_salt: of the account.
        seed: for a client that sets none, so that the request can be repeated elsewhere.
    """
    request = GenerateRequest(
        request_id=request_id,
        model=chat.model,
        messages=[_message(turn) for turn in chat.messages],
        sampling=_sampling(chat, chat.token_limit),
        stop=chat.stops,
        cache_salt=cache_salt,
        tools=[
            Tool(
                name=tool.function.name,
                description=tool.function.description or "",
                parameters_json_schema=_json(tool.function.parameters),
            )
            for tool in chat.tools or ()
        ],
        tool_choice=_tool_choice(chat),
        parallel_tool_calls=chat.parallel_tool_calls,
        response_format=_response_format(chat.response_format),
        reasoning_effort=EFFORTS[chat.reasoning_effort],
        chat_template_kwargs_json=_json(chat.chat_template_kwargs),
        top_logprobs=chat.alternatives,
    )
    return Batch(
        request,
        seed=seed if chat.seed is None else chat.seed,
        choices=chat.choices,
        has_own_seed=chat.seed is not None,
        prompt_bytes=request.ByteSize(),
        # What tools there are is not said to a model that may call none.
        prefix=of_conversation(
            () if chat.tool_choice == "none" else request.tools,
            request.messages,
            cache_salt=cache_salt,
        ),
    )


def of_completion(
    completion: CompletionRequest, /, *, request_id: str, cache_salt: str, seed: int
) -> Batch:
    """Build the generations of a text completion; see of_chat."""
    prompts = completion.texts()
    request = GenerateRequest(
        request_id=request_id,
        model=completion.model,
        sampling=_sampling(completion, completion.token_limit),
        stop=completion.stops,
        cache_salt=cache_salt,
        top_logprobs=completion.alternatives,
    )
    return Batch(
        request,
        seed=seed if completion.seed is None else completion.seed % SEEDS,
        prompts=prompts,
        choices=completion.choices,
        has_own_seed=completion.seed is not None,
        prompt_bytes=sum(len(prompt.encode()) for prompt in prompts),
        prefix=of_prompts(prompts, cache_salt=cache_salt),
    )


def _sampling(asked: GenerationRequest, max_tokens: int | None) -> Sampling:
    return Sampling(
        max_tokens=max_tokens,
        temperature=asked.temperature,
        top_p=asked.top_p,
        top_k=asked.top_k,
        min_p=asked.min_p,
        frequency_penalty=asked.frequency_penalty,
        presence_penalty=asked.presence_penalty,
        repetition_penalty=asked.repetition_penalty,
    )


def _message(turn: Turn) -> ChatMessage:
    calls = turn.tool_calls or ()
    return ChatMessage(
        role=ROLES[turn.role],
        content=turn.text(),
        reasoning=turn.reasoning or turn.reasoning_content,
        tool_calls=[
            ToolCall(id=call.id, name=call.function.name, arguments=call.function.arguments)
            for call in calls
        ],
        tool_call_id=turn.tool_call_id or "",
    )


def _tool_choice(chat: ChatCompletionRequest) -> ToolChoice | None:
    choice = chat.tool_choice
    if choice is None or not chat.tools:
        return None
    if isinstance(choice, NamedTool):
        return ToolChoice(mode=ToolChoiceMode.TOOL_CHOICE_MODE_NAMED, name=choice.function.name)
    return ToolChoice(mode=MODES[choice])


def _response_format(wanted: WantedFormat | None) -> ResponseFormat | None:
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return ResponseFormat(json_object=True)
    assert wanted.json_schema is not None
    return ResponseFormat(json_schema=to_json(wanted.json_schema.schema))


def _json(value: object) -> str:
    """Write down what may be absent; what is empty says no more than that."""
    return to_json(value) if value else ""
