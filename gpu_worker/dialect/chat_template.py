"""A conversation as the model was trained to read it: the model's own template, then token ids."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn, Protocol

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from gpu_worker.dialect.special_tokens import SpecialTokens, unused_mark

RENDER_LIMIT_S = 2.0
RENDER_LIMIT_CHARACTERS = 16 << 20

Message = Mapping[str, Any]
"""``role``, ``content`` and what else a template may read."""


class TemplateError(Exception):
    """The template refuses the conversation; the message says why."""


class Tokenizer(Protocol):
    """What the text of a prompt is encoded with."""

    @property
    def special_tokens(self) -> Mapping[str, int]:
        """Text and id of each special token."""

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Return token ids; special tokens in the text are text unless ``special``."""


class ChatTemplate:
    """A Jinja template in a sandbox, with what templates of public models expect to find."""

    def __init__(
        self,
        source: str,
        *,
        variables: Mapping[str, Any] | None = None,
        now: Callable[[], datetime] = datetime.now,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Compile a template.

        Args:
            source: Jinja text.
            variables: such as ``bos_token``.
            now: the local time, for templates that write today's date.
            clock: monotonic seconds.

        Raises:
            TemplateError: it is not a template.
        """
        self._variables = dict(variables or {})
        self._clock = clock
        try:
            self._template = _environment(now).from_string(source)
        except jinja2.TemplateError as error:
            raise TemplateError(f"the model's chat template is broken: {error}") from error

    def render(self, messages: Sequence[Message], **variables: Any) -> str:
        """Return the prompt's text, up to where the assistant begins to speak.

        Raises:
            TemplateError: the template raised, or the text has no end.
        """
        values = {"add_generation_prompt": True, **self._variables, **variables}
        try:
            return self._bounded(messages=messages, **values)
        except TemplateError:
            raise
        except jinja2.TemplateError as error:
            raise TemplateError(f"the model's chat template refuses: {error}") from error
        except Exception as error:
            raise TemplateError(
                f"the model's chat template cannot render these messages: {type(error).__name__}"
            ) from error

    def _bounded(self, **values: Any) -> str:
        deadline = self._clock() + RENDER_LIMIT_S
        left = RENDER_LIMIT_CHARACTERS
        parts = []
        for part in self._template.generate(**values):
            left -= len(part)
            if left < 0 or self._clock() > deadline:
                raise TemplateError("the model's chat template makes too much of these messages")
            parts.append(part)
        return "".join(parts)


class PromptEncoder:
    """Turns a conversation into the model's token ids."""

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer) -> None:
        self._template = template
        self._tokenizer = tokenizer
        self._special = SpecialTokens(tokenizer.special_tokens)

    def encode(self, messages: Sequence[Message], **variables: Any) -> list[int]:
        """Return token ids; special tokens in a message's content stay text.

        Raises:
            TemplateError: the template refuses the conversation.
        """
        mark = unused_mark(message["content"] for message in messages)
        guarded = [
            {**message, "content": self._special.broken(message["content"], mark)}
            for message in messages
        ]
        text = self._template.render(guarded, **variables)
        if mark not in text:
            return self._tokenizer.encode(text, special=True)
        ids: list[int] = []
        for piece in self._special.split(text):
            if isinstance(piece, int):
                ids.append(piece)
            else:
                ids += self._tokenizer.encode(piece.replace(mark, ""), special=False)
        return ids


class _Generation(jinja2.ext.Extension):
    """``{% generation %}`` marks the assistant's words for training; here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 reads it from the class

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment(now: Callable[[], datetime]) -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    """Return what transformers gives to chat templates (its ``chat_template_utils``)."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: now().strftime(form)
    return environment


def _raise(message: object) -> NoReturn:
    raise jinja2.TemplateError(str(message))


def _tojson(
    value: object,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002 - templates pass it by place
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002 - templates pass it by place
) -> str:
    """Dump JSON for a model, not for HTML: jinja2's own filter escapes ``<`` and ``'``."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
