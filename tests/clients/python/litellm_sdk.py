"""litellm, which also passes structured output on as a class."""

import json

import litellm
from calls import API_KEY, BASE_URL, HELLO, MODEL, PERSON, WEATHER, Person, report

litellm.telemetry = False
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}


def ask(content, **options):
    return litellm.completion(
        model=f"openai/{MODEL}",
        api_base=BASE_URL,
        api_key=API_KEY,
        messages=[{"role": "user", "content": content}],
        temperature=0,
        **options,
    )


plain = ask(HELLO)
stream = ask(HELLO, stream=True, stream_options={"include_usage": True})
chunks = list(stream)
assert chunks[-1].usage.completion_tokens > 0
tool = ask(WEATHER, tools=[TOOL], tool_choice="auto")
call = tool.choices[0].message.tool_calls[0].function
structured = ask(PERSON, response_format=Person)
report(
    plain=plain.choices[0].message.content,
    streamed=[c.choices[0].delta.content or "" for c in chunks if c.choices],
    tool=(call.name, json.loads(call.arguments)),
    structured=json.loads(structured.choices[0].message.content),
)
