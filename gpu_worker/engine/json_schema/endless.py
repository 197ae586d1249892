"""Whether a JSON Schema asks for a value without end, such as a node that needs a next node."""

from collections.abc import Mapping
from typing import Any

# Over the definitions, in alternating order. Few schemas take more than three.
_MAX_PASSES = 20


def is_endless(document: Mapping[str, Any]) -> bool:
    """Tell whether every value of a schema would surely hold another one of the same kind.

    Args:
        document: a canonical schema; all that is referred to stands in its "$defs".
    """
    left = [(f"#/$defs/{name}", schema) for name, schema in document.get("$defs", {}).items()]
    ended: set[str] = set()
    for _ in range(_MAX_PASSES):
        count = len(ended)
        for name, schema in reversed(left):
            if _ends(schema, ended):
                ended.add(name)
        if len(ended) == count:
            return not _ends(document, ended)
        left = [(name, schema) for name, schema in reversed(left) if name not in ended]
    return False


def _ends(schema: Any, ended: set[str]) -> bool:
    """Tell whether a value can be finite where only references to ``ended`` are."""
    if isinstance(schema, bool):
        return True
    if "$ref" in schema and schema["$ref"] not in ended:
        return False
    if not all(_ends(part, ended) for part in schema.get("allOf", ())):
        return False
    for keyword in ("anyOf", "oneOf"):
        if keyword in schema and not any(_ends(option, ended) for option in schema[keyword]):
            return False
    return all(_ends(part, ended) for part in _needed(schema))


def _needed(schema: Mapping[str, Any]) -> list[Any]:
    """Return the schemas of what every value of a schema contains."""
    match schema.get("type"):
        case "object":
            properties = schema.get("properties", {})
            return [properties.get(name, True) for name in schema.get("required", ())]
        case "array":
            least = schema.get("minItems", 0)
            return [*schema.get("prefixItems", ())[:least], schema.get("items", True)][:least]
        case _:
            return []
