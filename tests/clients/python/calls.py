"""What every client asks, and how it tells what it got."""

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

BASE_URL = os.environ["OPENAI_BASE_URL"]
API_KEY = os.environ["OPENAI_API_KEY"]
MODEL = os.environ["OPENAI_MODEL"]

HELLO = "Hello"
WEATHER = "What is the weather in Rome?"
PERSON = "Extract as JSON: Alice, 31, from Oslo."


class Person(BaseModel):
    name: str
    age: int
    city: str


def get_weather(city: str) -> str:
    """Get the weather in a city."""
    return json.dumps({"result": 21})


def report(
    *,
    plain: str,
    streamed: Sequence[str],
    tool: tuple[str, Mapping[str, Any]],
    structured: Mapping[str, Any],
) -> None:
    """Print all of it for the test."""
    print(
        json.dumps({"plain": plain, "streamed": streamed, "tool": tool, "structured": structured})
    )
