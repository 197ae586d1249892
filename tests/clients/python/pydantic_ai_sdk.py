"""pydantic-ai, which calls the function itself and sends its result back."""

import asyncio

from calls import HELLO, MODEL, PERSON, WEATHER, Person, get_weather, report
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.settings import ModelSettings

model = OpenAIChatModel(MODEL, provider="openai", settings=ModelSettings(temperature=0))


async def main():
    agent = Agent(model)
    plain = await agent.run(HELLO)
    async with agent.run_stream(HELLO) as stream:
        streamed = [piece async for piece in stream.stream_text(delta=True, debounce_by=None)]
    tool = await Agent(model, tools=[get_weather]).run(WEATHER)
    parts = [part for message in tool.all_messages() for part in message.parts]
    call = next(part for part in parts if isinstance(part, ToolCallPart))
    assert tool.output == "The result is 21."
    structured = await Agent(model, output_type=NativeOutput(Person)).run(PERSON)
    report(
        plain=plain.output,
        streamed=streamed,
        tool=(call.tool_name, call.args_as_dict()),
        structured=structured.output.model_dump(),
    )


asyncio.run(main())
