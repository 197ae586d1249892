"""Functions, as templates and grammars see them."""

import pytest

from gpu_worker.dialect.tools import Tool

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


@pytest.mark.parametrize(
    ("parameters", "closed"),
    [
        (None, True),
        ({}, True),
        (CITY, True),
        (CITY | {"additionalProperties": True}, False),
        (CITY | {"patternProperties": {}}, False),
        (CITY | {"required": ["other"]}, False),
        ({"anyOf": [CITY]}, False),
    ],
)
def test_forced_arguments_are_those_that_a_schema_lists(parameters, closed):
    """A schema that only lists properties is closed; any other is taken as it is."""
    schema = Tool("f", "", parameters).arguments_schema()
    assert schema["type"] == "object"
    expected = {"type": "object", **(parameters or {})}
    assert schema == (expected | {"additionalProperties": False} if closed else expected)


def test_templates_get_openais_shape():
    """Absent parameters are an empty list, an absent description is absent."""
    assert Tool("f").as_template_value() == {
        "type": "function",
        "function": {"name": "f", "parameters": {"type": "object", "properties": {}}},
    }
    assert Tool("f", "does", CITY).as_template_value()["function"] == {
        "name": "f",
        "description": "does",
        "parameters": CITY,
    }
