"""instructor: a tool that has to be called, and a schema."""

import instructor
from calls import HELLO, MODEL, PERSON, WEATHER, Person, report
from openai import OpenAI
from pydantic import BaseModel


class get_weather(BaseModel):  # noqa: N801 - the function's name is made from it
    """Get the weather in a city."""

    city: str


settings = {"model": MODEL, "temperature": 0, "max_retries": 0}


def user(content):
    return [{"role": "user", "content": content}]


client = OpenAI()
tools = instructor.from_openai(client, mode=instructor.Mode.TOOLS)
schemas = instructor.from_openai(client, mode=instructor.Mode.JSON_SCHEMA)

plain = tools.chat.completions.create(response_model=None, messages=user(HELLO), **settings)
stream = tools.chat.completions.create(
    response_model=None, messages=user(HELLO), stream=True, **settings
)
streamed = [chunk.choices[0].delta.content or "" for chunk in stream]
call = tools.chat.completions.create(response_model=get_weather, messages=user(WEATHER), **settings)
structured = schemas.chat.completions.create(
    response_model=Person, messages=user(PERSON), **settings
)
report(
    plain=plain.choices[0].message.content,
    streamed=streamed,
    tool=(type(call).__name__, call.model_dump()),
    structured=structured.model_dump(),
)
