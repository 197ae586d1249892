"""The front page: what this server is, and where to go."""

import html
from collections.abc import Sequence

from fastrun.v1.worker_pb2 import ModelCard

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>fastrun</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 42rem; margin: 4rem auto }}
code, pre {{ background: #8881; border-radius: 4px; padding: .1em .3em }}
pre {{ padding: 1em; overflow-x: auto }}
</style>
</head>
<body>
<h1>fastrun</h1>
<p>The OpenAI API over open models. Any OpenAI client works: give it this server's address with
<code>/v1</code> as base URL, and an API key.</p>
<ul>
<li><code>POST /v1/chat/completions</code></li>
<li><code>POST /v1/completions</code></li>
<li><a href="/v1/models"><code>GET /v1/models</code></a> (with a key)</li>
<li><a href="/v1/usage"><code>GET /v1/usage</code></a> (with a key)</li>
<li><a href="/docs"><code>GET /docs</code></a>, the reference, and
<a href="/openapi.json"><code>GET /openapi.json</code></a></li>
<li><a href="/healthz"><code>GET /healthz</code></a>,
<a href="/readyz"><code>GET /readyz</code></a></li>
</ul>
<p>Models that can answer now: {models}</p>
<pre>curl $BASE_URL/chat/completions \\
  -H "Authorization: Bearer $API_KEY" -H "Content-Type: application/json" \\
  -d '{{"model": "{model}", "messages": [{{"role": "user", "content": "Hello!"}}]}}'</pre>
</body>
</html>
"""


def front_page(cards: Sequence[ModelCard]) -> bytes:
    """Render the page for the models that can serve now."""
    names = [html.escape(card.model) for card in cards]
    models = ", ".join(f"<code>{name}</code>" for name in names) or "none yet"
    return _PAGE.format(models=models, model=names[0] if names else "MODEL").encode()
