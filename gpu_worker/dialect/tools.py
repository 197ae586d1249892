"""Functions that a model may call, and the pieces in which its calls arrive."""

from collections.abc import Mapping
from typing import Any

import msgspec

# A schema with nothing but these says by name which properties there are.
_LISTING = frozenset(
    {"type", "properties", "required", "title", "description", "$defs", "definitions", "$schema"}
)


class Tool(msgspec.Struct, frozen=True):
    """A function."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] | None = None  # JSON Schema; None: it takes no arguments

    def as_template_value(self) -> dict[str, Any]:
        """Return what chat templates expect to find: OpenAI's shape."""
        function: dict[str, Any] = {"name": self.name}
        if self.description:
            function["description"] = self.description
        function["parameters"] = (
            {"type": "object", "properties": {}} if self.parameters is None else self.parameters
        )
        return {"type": "function", "function": function}

    def arguments_schema(self) -> dict[str, Any]:
        """Return what arguments are held to when a call is forced.

        They are an object. One that only lists its properties has no others, so that a model that
        is forced to call does not make arguments up.
        """
        schema = {"type": "object", **(self.parameters or {})}
        listed, required = schema.get("properties", {}), schema.get("required", [])
        if (
            schema.keys() <= _LISTING
            and isinstance(listed, Mapping)
            and isinstance(required, list)
            and all(name in listed for name in required)
        ):
            schema["additionalProperties"] = False
        return schema


class CallPiece(msgspec.Struct, frozen=True):
    """More of a call. The first piece of each has its name, and no later one does."""

    name: str = ""
    arguments: str = ""
    complete: bool = False  # nothing follows for this call
