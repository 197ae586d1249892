"""A conversation as the model was trained to read it: the model's own template, then token ids."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextvars import ContextVar
from datetime import datetime
from typing import Any, NoReturn, Protocol, Self

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
import msgspec

from gpu_worker.dialect.special_tokens import SpecialTokens, unused_mark

RENDER_LIMIT_S = 2.0
RENDER_LIMIT_CHARACTERS = 16 << 20
TOO_MUCH = "the model's chat template makes too much of these messages"

Message = Mapping[str, Any]
"""``role``, ``content`` and what else a template may read."""


class TemplateError(Exception):
    """The template refuses the conversation; the message says why."""


class Verbatim(str):
    """A text that the filter ``tojson`` leaves as it is, where others become JSON strings."""

    __slots__ = ()


class Ours(str):
    """A text that nobody but us wrote: the special tokens in it are meant."""

    __slots__ = ()


class Composed(str):
    """A text of several parts, some of which are ``Ours``."""

    __slots__ = ("parts",)

    parts: tuple[str, ...]

    def __new__(cls, *parts: str) -> Self:
        """Join parts; one of ours must not end in the start of a special token."""
        made = super().__new__(cls, "".join(parts))
        made.parts = parts
        return made


class Tokenizer(Protocol):
    """What the text of a prompt is encoded with."""

    @property
    def special_tokens(self) -> Mapping[str, int]:
        """Text and id of each special token."""

    @property
    def longest_token_bytes(self) -> int:
        """No token stands for more bytes of UTF-8 than this."""

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Return token ids; special tokens in the text are text unless ``special``."""


class ChatTemplate:
    """A Jinja template in a sandbox, with what templates of public models expect to find.

    ``source`` is its text and ``reads`` names the variables that it looks at.
    """

    def __init__(
        self,
        source: str,
        *,
        variables: Mapping[str, Any] | None = None,
        now: Callable[[], datetime] = datetime.now,
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        """Compile a template.

        Args:
            source: Jinja text.
            variables: such as ``bos_token``.
            now: the local time, for templates that write today's date.
            clock: seconds that this thread has worked; on a busy machine others pass as well.

        Raises:
            TemplateError: it is not a template.
        """
        self.source = source
        self._variables = dict(variables or {})
        self._clock = clock
        environment = _environment(now)
        try:
            self.reads = frozenset(jinja2.meta.find_undeclared_variables(environment.parse(source)))
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise TemplateError(f"the model's chat template is broken: {error}") from error
        except Exception as error:
            # Nested too deeply, a break outside a loop: what Python makes of jinja2's code.
            raise TemplateError(
                f"the model's chat template is broken: {type(error).__name__}"
            ) from error

    def render(self, messages: Sequence[Message], /, **variables: Any) -> str:
        """Return the prompt's text, up to where the assistant begins to speak.

        Raises:
            TemplateError: the template raised, or the text has no end.
        """
        values = {"add_generation_prompt": True, **self._variables, **variables}
        values["messages"] = messages
        try:
            return self._bounded(values)
        except TemplateError:
            raise
        except jinja2.TemplateError as error:
            raise TemplateError(f"the model's chat template refuses: {error}") from error
        except Exception as error:
            raise TemplateError(
                f"the model's chat template cannot render these messages: {type(error).__name__}"
            ) from error

    def _bounded(self, values: Mapping[str, Any]) -> str:
        deadline = self._clock() + RENDER_LIMIT_S

        def check() -> None:
            if self._clock() > deadline:
                raise TemplateError(TOO_MUCH)

        left = RENDER_LIMIT_CHARACTERS
        parts = []
        before = _in_loops.set(check)
        try:
            for part in self._template.generate(values):
                left -= len(part)
                if left < 0:
                    raise TemplateError(TOO_MUCH)
                check()
                parts.append(part)
        finally:
            _in_loops.reset(before)
        return "".join(parts)


class Rendered(msgspec.Struct, frozen=True):
    """A prompt's text, in which a mark breaks the special tokens that people wrote."""

    text: str
    mark: str


class PromptEncoder:
    """Turns a conversation, or a raw text, into the model's token ids."""

    def __init__(
        self, template: ChatTemplate, tokenizer: Tokenizer, *, bos_id: int | None = None
    ) -> None:
        """Join template and tokenizer.

        Args:
            template: for conversations; it writes its first token itself.
            tokenizer: for both.
            bos_id: what a raw text begins with; None for nothing.
        """
        self._template = template
        self._tokenizer = tokenizer
        self._bos = [] if bos_id is None else [bos_id]
        self._special = SpecialTokens(tokenizer.special_tokens)

    def raw(self, text: str) -> list[int]:
        """Return the token ids of a text as it is; special tokens in it stay text."""
        return self._bos + self._tokenizer.encode(text, special=False)

    def render(self, messages: Sequence[Message], /, **variables: Any) -> Rendered:
        """Apply the template; special tokens in any text of messages and variables stay text.

        Raises:
            TemplateError: the template refuses the conversation.
        """
        mark = unused_mark(_texts([messages, variables]))
        guarded = [self._guarded(message, mark) for message in messages]
        values = {name: self._guarded(value, mark) for name, value in variables.items()}
        return Rendered(self._template.render(guarded, **values), mark)

    def fewest_tokens(self, rendered: Rendered) -> int:
        """Return how many tokens a prompt has at least; cheap beside counting them."""
        text, mark = rendered.text, rendered.mark
        characters = len(text) - text.count(mark) * len(mark)
        return characters // self._tokenizer.longest_token_bytes

    def token_ids(self, rendered: Rendered) -> list[int]:
        """Return the token ids of a prompt."""
        text, mark = rendered.text, rendered.mark
        if mark not in text:
            return self._tokenizer.encode(text, special=True)
        ids: list[int] = []
        for piece in self._special.split(text):
            if isinstance(piece, int):
                ids.append(piece)
            else:
                ids += self._tokenizer.encode(piece.replace(mark, ""), special=False)
        return ids

    def _guarded(self, value: Any, mark: str) -> Any:
        """Return a JSON value with the special tokens in its texts broken."""
        if isinstance(value, Ours):
            return value
        if isinstance(value, Composed):
            return "".join(self._guarded(part, mark) for part in value.parts)
        if isinstance(value, str):
            broken = self._special.broken(value, mark)
            return Verbatim(broken) if isinstance(value, Verbatim) else broken
        if isinstance(value, Mapping):
            return {
                self._special.broken(key, mark): self._guarded(inner, mark)
                for key, inner in value.items()
            }
        if isinstance(value, Sequence):
            return [self._guarded(inner, mark) for inner in value]
        return value


def _texts(value: Any) -> Iterator[str]:
    """Yield all texts in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield key
            yield from _texts(inner)
    elif isinstance(value, Sequence):
        for inner in value:
            yield from _texts(inner)


class _Generation(jinja2.ext.Extension):
    """``{% generation %}`` marks the assistant's words for training; here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 reads it from the class

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


_in_loops: ContextVar[Callable[[], None]] = ContextVar("in_loops", default=lambda: None)
"""What the rendering of this context does in every turn of a loop: it may raise."""


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Lets a template that loops without writing anything be stopped, and no text grow at once."""

    intercepted_binops = frozenset({"*", "**"})

    def _parse(self, source: str, name: str | None, filename: str | None) -> jinja2.nodes.Template:
        template = super()._parse(source, name, filename)
        loops: Iterator[Any] = template.find_all((jinja2.nodes.For, jinja2.nodes.Macro))
        for node in loops:
            check = jinja2.nodes.EnvironmentAttribute("check", lineno=node.lineno)
            call = jinja2.nodes.Call(check, [], [], None, None, lineno=node.lineno)
            node.body.insert(0, jinja2.nodes.ExprStmt(call, lineno=node.lineno))
        return template

    @staticmethod
    def check() -> None:
        """Do what is to be done in every turn of a loop and at every call of a macro."""
        _in_loops.get()()

    def call_binop(
        self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any
    ) -> Any:
        """Multiply, unless the result is larger than a prompt may be."""
        sizes = [len(each) if isinstance(each, Sized) else abs(each) for each in (left, right)]
        product = sizes[0] ** min(sizes[1], 64) if operator == "**" else sizes[0] * sizes[1]
        if product > RENDER_LIMIT_CHARACTERS:
            raise TemplateError(TOO_MUCH)
        return super().call_binop(context, operator, left, right)


def _environment(now: Callable[[], datetime]) -> _Environment:
    """Return what transformers gives to chat templates (its ``chat_template_utils``)."""
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    # A prompt is no HTML: jinja2's own filter has whatever is added to its value escaped.
    environment.filters["safe"] = str
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
    if isinstance(value, Verbatim):
        return value
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
