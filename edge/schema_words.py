"""What a field of the API takes, in words, for whichever page shows it."""

from collections.abc import Callable
from typing import Any

Json = dict[str, Any]
Markup = Callable[[str], str]


def type_of(schema: Json, *, code: Markup, link: Markup) -> str:
    """Say what a schema takes; null goes without saying, as it is the same as absent.

    Args:
        schema: a part of the OpenAPI document.
        code: marks a value.
        link: makes the name of another schema lead there.
    """
    if "$ref" in schema:
        return link(name_of(schema))
    if "anyOf" in schema:
        kinds = [each for each in schema["anyOf"] if each != {"type": "null"}]
        return " or ".join(type_of(each, code=code, link=link) for each in kinds)
    if "enum" in schema:
        return ", ".join(code(str(each)) for each in schema["enum"])
    if schema.get("type") == "array":
        most = f"at most {schema['maxItems']} " if "maxItems" in schema else ""
        return f"list of {most}{type_of(schema['items'], code=code, link=link)}"
    if "minimum" in schema and "maximum" in schema:
        return f"{schema['type']} from {schema['minimum']} to {schema['maximum']}"
    return str(schema.get("type", "any value"))


def name_of(schema: Json) -> str:
    """Return the name of the schema that a reference leads to."""
    return str(schema["$ref"]).rpartition("/")[2]
