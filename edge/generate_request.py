"""What a worker is asked to generate: the one place where the public API and the proto meet."""

from edge.openai_schema import ChatCompletionRequest
from fastrun.v1.generation_pb2 import ChatMessage, GenerateRequest, Role, Sampling

ROLES = {
    "system": Role.ROLE_SYSTEM,
    "developer": Role.ROLE_SYSTEM,
    "user": Role.ROLE_USER,
    "assistant": Role.ROLE_ASSISTANT,
    "tool": Role.ROLE_TOOL,
}


def of_chat(
    chat: ChatCompletionRequest, *, request_id: str, cache_salt: str, seed: int
) -> GenerateRequest:
    """Build the request of a chat completion, all but the lease.

    Args:
        chat: what the client asks for.
        request_id: of the edge.
        cache_salt: of the account.
        seed: for a client that sets none, so that the request can be repeated elsewhere.
    """
    return GenerateRequest(
        request_id=request_id,
        model=chat.model,
        messages=[
            ChatMessage(role=ROLES[message.role], content=message.text())
            for message in chat.messages
        ],
        sampling=Sampling(
            max_tokens=chat.token_limit,
            temperature=chat.temperature,
            top_p=chat.top_p,
            top_k=chat.top_k,
            min_p=chat.min_p,
            frequency_penalty=chat.frequency_penalty,
            presence_penalty=chat.presence_penalty,
            repetition_penalty=chat.repetition_penalty,
            seed=seed if chat.seed is None else chat.seed,
        ),
        stop=chat.stops,
        cache_salt=cache_salt,
    )
