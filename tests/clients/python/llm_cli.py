"""The llm command, which keeps what it did in a database of its own."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from calls import API_KEY, BASE_URL, HELLO, MODEL, PERSON, WEATHER, Person, report

FUNCTION = '''
def get_weather(city: str) -> str:
    """Get the weather in a city"""
    return '{"result": 21}'
'''


def main(home: Path) -> None:
    facts = {
        "model_id": "fastrun",
        "model_name": MODEL,
        "api_base": BASE_URL,
        "api_key_name": "fastrun",
        "supports_tools": True,
        "supports_schema": True,
    }
    (home / "extra-openai-models.yaml").write_text(json.dumps([facts]))  # JSON is YAML
    (home / "keys.json").write_text(json.dumps({"fastrun": API_KEY}))
    # The default model's weights come in a plugin of llm's, whose library is not installed.
    environ = {**os.environ, "LLM_USER_PATH": str(home), "LLM_LOAD_PLUGINS": ""}

    def llm(*arguments: str) -> str:
        command = [sys.executable, "-m", "llm", *arguments]
        return subprocess.run(
            command, check=True, stdout=subprocess.PIPE, text=True, env=environ
        ).stdout.removesuffix("\n")

    def ask(prompt: str, *options: str) -> str:
        return llm("prompt", "-m", "fastrun", "-o", "temperature", "0", *options, prompt)

    plain, streamed = ask(HELLO, "--no-stream"), ask(HELLO)
    assert ask(WEATHER, "--functions", FUNCTION) == "The result is 21."
    calls = [call for entry in json.loads(llm("logs", "--json")) for call in entry["tool_calls"]]
    report(
        plain=plain,
        streamed=[streamed],
        tool=(calls[0]["name"], calls[0]["arguments"]),
        structured=json.loads(ask(PERSON, "--schema", json.dumps(Person.model_json_schema()))),
    )


with tempfile.TemporaryDirectory() as home:
    main(Path(home))
