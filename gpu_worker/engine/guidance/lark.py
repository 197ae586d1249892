"""A grammar in llguidance's language, a dialect of Lark."""

import json
import re
from collections.abc import Mapping

from gpu_worker.dialect.special_tokens import SpecialTokens
from gpu_worker.engine.grammar import (
    Choice,
    Free,
    Grammar,
    GrammarError,
    Json,
    Literal,
    Repeat,
    Sequence,
)
from gpu_worker.engine.json_schema.canonical import canonical

# Bytes of Lark text. Compiling takes about a second per megabyte, and up to half a kilobyte of
# stack per byte where definitions refer to one another in a chain.
MAX_SIZE = 128 << 10
MAX_GRAMMAR_NESTING = 40  # of the parts of a grammar
MAX_REPEATS = 1000
ANY = "/(?s:.*)/"

# Whatever a schema says, no keyword is ignored and no alternative approximated. Models write JSON
# compact, with a space after commas and colons, or on indented lines: that much whitespace is
# allowed, and once only. If all of it were, a model that is unsure of the next token could go on
# with spaces until max_tokens.
JSON_OPTIONS = {
    "lenient": False,
    "coerce_one_of": False,
    "item_separator": ", ?",
    "key_separator": ": ?",
    "whitespace_pattern": r"\n {0,32}|\n\t{0,8}",
}


def lark(
    grammar: Grammar,
    special_tokens: Mapping[str, int],
    *,
    json_options: Mapping[str, object] = JSON_OPTIONS,
) -> str:
    """Write a grammar.

    Args:
        grammar: what may be said.
        special_tokens: text and id of the tokens that stand for no text of their own, so that
            only their id can match.
        json_options: how JSON is to be written, in the library's words.

    Raises:
        GrammarError: it is larger than the limits above, or cannot be written.
    """
    rules = _Rules(special_tokens, json_options)
    start = rules.rule(grammar, MAX_GRAMMAR_NESTING)
    text = "\n".join([f"start: {start}", *rules.lines])
    if len(text) > MAX_SIZE:
        raise GrammarError(
            f"what is enforced of schemas may take {MAX_SIZE} bytes and this takes {len(text)}: "
            "make them shorter"
        )
    return text


class _Rules:
    """The rules written so far; each part of the grammar becomes one, named by its number.

    A part that stands in several places is written once.
    """

    def __init__(
        self, special_tokens: Mapping[str, int], json_options: Mapping[str, object]
    ) -> None:
        self._json_options = json_options
        self.lines: list[str] = []
        self._names: dict[int, str] = {}  # by the part's identity: to compare all takes long
        self._special = SpecialTokens(special_tokens)

    def rule(self, grammar: Grammar, depth: int) -> str:
        """Add the rule of a part and return its name."""
        if depth == 0:
            raise GrammarError(f"a grammar may nest {MAX_GRAMMAR_NESTING} parts deep")
        if known := self._names.get(id(grammar)):
            return known
        name = self._names[id(grammar)] = f"r{len(self.lines)}"
        self.lines.append("")  # keeps the place, and the name, while the rule's parts are added
        index = len(self.lines) - 1
        attributes, body = self._body(grammar, depth - 1)
        self.lines[index] = f"{name}{attributes}: {body}"
        return name

    def _body(self, grammar: Grammar, depth: int) -> tuple[str, str]:
        match grammar:
            case Literal(text):
                return "", " ".join(self._pieces(text)) or '""'
            case Json(schema):
                return "", f"%json {json_schema(schema, self._json_options)}"
            case Free():
                return self._free(grammar)
            case Sequence(parts):
                return "", " ".join(self.rule(part, depth) for part in parts) or '""'
            case Choice(options):
                if not options:
                    raise GrammarError("a choice needs at least one option")
                return "", " | ".join(self.rule(option, depth) for option in options)
            case Repeat(part, least, most):
                if not 0 <= least <= (least if most is None else most) <= MAX_REPEATS:
                    raise GrammarError(
                        f"a part can be repeated 0 to {MAX_REPEATS} times, not {least} to {most}"
                    )
                return "", f"{self.rule(part, depth)}{_times(least, most)}"

    def _free(self, free: Free) -> tuple[str, str]:
        pieces = self._pieces(free.until)
        special = [at for at, piece in enumerate(pieces) if piece.startswith("<")]
        if not pieces or len(special) > 1:
            raise GrammarError("free text must end with some text, with one special token at most")
        if not 0 <= free.least <= (free.least if free.most is None else free.most):
            raise GrammarError(f"a text cannot be {free.least} to {free.most} characters long")
        body = ANY
        if free.least or free.most is not None:
            body = f"/(?s:.{_times(free.least, free.most)})/"
        unwanted = [f"({ANY} {json.dumps(text)} {ANY})" for text in free.without]
        unwanted += [f"(/\\s*/ {json.dumps(first)} {ANY})" for first in free.not_first]
        if unwanted:
            # Only a terminal can be what others are not.
            body = self._terminal(f"{body} & ~({' | '.join(unwanted)})")
        if not special:
            return f"[suffix={pieces[0]}]", body
        # Free text cannot run over a special token, so that the first one ends it.
        if special[0]:
            body = self._terminal(f"{body} {pieces[0]}")
        return "", " ".join([body, *pieces[special[0] :]])

    def _terminal(self, body: str) -> str:
        """Add a terminal and return its name."""
        name = f"T{len(self.lines)}"
        self.lines.append(f"{name}: {body}")
        return name

    def _pieces(self, text: str) -> list[str]:
        return [
            f"<[{piece}]>" if isinstance(piece, int) else json.dumps(piece)
            for piece in self._special.split(text)
            if piece != ""
        ]


def _times(least: int, most: int | None) -> str:
    return f"{{{least},{'' if most is None else most}}}"


def json_schema(text: str, options: Mapping[str, object] = JSON_OPTIONS) -> str:
    """Return a JSON Schema as the library takes it.

    Raises:
        GrammarError: with what is wrong.
    """
    schema = canonical(text)
    if schema is False:
        raise GrammarError("the JSON Schema allows no value at all")
    return json.dumps({**(schema if isinstance(schema, dict) else {}), "x-guidance": options})


# What the library says of schemas, and what is said in its place.
_REASONS = (
    ("NoExtension", "the output cannot be held to this grammar: no text fits it"),
    (
        "oneOf constraints",
        'the JSON Schema uses "oneOf" with alternatives that may fit at once: use "anyOf"',
    ),
    (
        "min/maxProperties",
        (
            'the JSON Schema uses "minProperties" or "maxProperties" beside optional properties, '
            "which cannot be enforced here: leave it out"
        ),
    ),
    (
        "look-?around",
        (
            r"a pattern of the JSON Schema looks around, as (?=...), \\b or a ^ within it do, "
            "which cannot be enforced here: say it otherwise"
        ),
    ),
    ("Value for 'multipleOf'", 'the JSON Schema uses a "multipleOf" that cannot be enforced here'),
    ("Unsatisfiable schema: (.{1,160})", r"no value fits the JSON Schema: \1"),
)
_PLACE = re.compile(r"^(?:at )?\d+\(\d+\): ")
_LONGEST_REASON = 160


def reason(message: str) -> str:
    """Make the library's account of an error short, and free of the grammar it quotes."""
    head, *rest = _PLACE.sub("", message.strip()).splitlines() or ["unknown reason"]
    detail = next((line.removeprefix("error: ") for line in rest if line.startswith("error: ")), "")
    text = f"{head} {detail}".strip().replace("failed to compile JSON schema: ", "")
    for pattern, said in _REASONS:
        if found := re.search(pattern, text):
            return found.expand(said)
    text = text.split(". ")[0]
    short = text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]}…"
    return f"the output cannot be held to this grammar: {short}"
