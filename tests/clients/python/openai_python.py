"""openai-python."""

import json

from calls import HELLO, MODEL, PERSON, WEATHER, Person, report
from openai import OpenAI, pydantic_function_tool
from pydantic import BaseModel


class GetWeather(BaseModel):
    """Get the weather in a city."""

    city: str


client = OpenAI()
settings = {"model": MODEL, "temperature": 0}


def user(content):
    return [{"role": "user", "content": content}]


plain = client.chat.completions.create(messages=user(HELLO), **settings)
with client.chat.completions.stream(messages=user(HELLO), **settings) as stream:
    pieces = [event.delta for event in stream if event.type == "content.delta"]
tool = client.chat.completions.create(
    messages=user(WEATHER),
    tools=[pydantic_function_tool(GetWeather, name="get_weather")],
    **settings,
)
call = tool.choices[0].message.tool_calls[0].function
structured = client.chat.completions.parse(
    messages=user(PERSON), response_format=Person, **settings
)
report(
    plain=plain.choices[0].message.content,
    streamed=pieces,
    tool=(call.name, json.loads(call.arguments)),
    structured=structured.choices[0].message.parsed.model_dump(),
)
