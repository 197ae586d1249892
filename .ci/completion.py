"""Asks the model of `fastrun up --exec` for a completion, with the standard library alone."""

import json
import os
import sys
import urllib.request

request = urllib.request.Request(
    f"{os.environ['OPENAI_BASE_URL']}/chat/completions",
    data=json.dumps(
        {
            "model": os.environ["OPENAI_MODEL"],
            "messages": [{"role": "user", "content": "What is the capital of France?"}],
            "temperature": 0,
            "max_tokens": 32,
        }
    ).encode(),
    headers={
        "Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}",
        "Content-Type": "application/json",
    },
)
with urllib.request.urlopen(request, timeout=120) as response:
    answer = json.load(response)
print(answer["choices"][0]["message"]["content"])
if answer["choices"][0]["message"]["content"].strip() == "" or answer["usage"]["total_tokens"] < 10:
    sys.exit(f"this is no completion: {answer}")
