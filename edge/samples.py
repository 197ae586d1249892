"""How to call each operation: in curl, Python and JavaScript, to be copied from the reference."""

import json
from collections.abc import Mapping
from typing import Any

BASE_URL = "http://localhost:8000/v1"
KEY = "fr_..."

Samples = Mapping[str, str]
"""Code by the name of its language."""


def samples(operation: str, body: dict[str, Any] | None) -> Samples:
    """Write the code that calls an operation.

    Args:
        operation: its operationId.
        body: an example of it, for those that have one.
    """
    method, python, javascript = _CALLS[operation]
    if body is None:
        return {
            "curl": f'curl {BASE_URL}{method} \\\n  -H "Authorization: Bearer {KEY}"\n',
            "Python": f"{_PYTHON_HEAD}\n{python}\n",
            "JavaScript": f"{_JAVASCRIPT_HEAD}\n{javascript}\n",
        }
    return {
        "curl": _curl(method, body),
        "Python": f"{_PYTHON_HEAD}\n{_python(python, body)}",
        "JavaScript": f"{_JAVASCRIPT_HEAD}\n{_javascript(javascript, body)}",
    }


_CALLS: Mapping[str, tuple[str, str, str]] = {
    "createChatCompletion": (
        "/chat/completions",
        "client.chat.completions.create",
        "client.chat.completions.create",
    ),
    "createCompletion": ("/completions", "client.completions.create", "client.completions.create"),
    "listModels": (
        "/models",
        "for model in client.models.list():\n    print(model.id)",
        "for await (const model of client.models.list()) console.log(model.id);",
    ),
    "getModel": (
        "/models/MODEL",
        'print(client.models.retrieve("MODEL"))',
        'console.log(await client.models.retrieve("MODEL"));',
    ),
    "getUsage": (
        "/usage",
        'print(client.get("/usage", cast_to=object))',
        'console.log(await client.get("/usage"));',
    ),
}
_PYTHON_HEAD = f"""\
from openai import OpenAI

client = OpenAI(base_url="{BASE_URL}", api_key="{KEY}")
"""
_JAVASCRIPT_HEAD = f"""\
import OpenAI from "openai";

const client = new OpenAI({{ baseURL: "{BASE_URL}", apiKey: "{KEY}" }});
"""
_PRINTED = {
    "client.chat.completions.create": "choices[0].message.content",
    "client.completions.create": "choices[0].text",
}


def _curl(path: str, body: dict[str, Any]) -> str:
    text = json.dumps(body, indent=2).replace("'", "'\\''")
    return (
        f"curl {BASE_URL}{path} \\\n"
        f'  -H "Authorization: Bearer {KEY}" \\\n'
        '  -H "Content-Type: application/json" \\\n'
        f"  -d '{text}'\n"
    )


def _python(call: str, body: dict[str, Any]) -> str:
    arguments = "".join(f"    {name}={json.dumps(value)},\n" for name, value in body.items())
    return f"answer = {call}(\n{arguments})\nprint(answer.{_PRINTED[call]})\n"


def _javascript(call: str, body: dict[str, Any]) -> str:
    fields = "".join(f"  {name}: {json.dumps(value)},\n" for name, value in body.items())
    return f"const answer = await {call}({{\n{fields}}});\nconsole.log(answer.{_PRINTED[call]});\n"
