"""Which variables of a chat template a request may not set: one rule of edge and worker."""

from typing import Final

_OF_THE_REQUEST = {"documents", "messages", "tools"}
_OF_THE_RENDERING = {
    "add_generation_prompt",
    "bos_token",
    "chat_template",
    "continue_final_message",
    "eos_token",
    "raise_exception",
    "strftime_now",
    "tokenize",
}
# In place of these, jinja's own names, a template would find a value that it cannot use.
_OF_JINJA = {
    "caller",
    "context",
    "cycler",
    "dict",
    "environment",
    "joiner",
    "kwargs",
    "lipsum",
    "loop",
    "namespace",
    "range",
    "self",
    "super",
    "varargs",
}

RESERVED: Final = frozenset(_OF_THE_REQUEST | _OF_THE_RENDERING | _OF_JINJA)
