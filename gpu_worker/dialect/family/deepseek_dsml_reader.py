"""Reads DeepSeek V3.2's block of calls, whose arguments stand one by one between tags.

``<｜DSML｜function_calls>``, for each call ``<｜DSML｜invoke name="NAME">``, for each argument
``<｜DSML｜parameter name="KEY" string="true">``, its value and ``</｜DSML｜parameter>``, then
``</｜DSML｜invoke>`` and at last ``</｜DSML｜function_calls>``. A text stands as it is, all else is
JSON, with ``string="false"``. V4 names the block ``tool_calls``.

Accepted besides: a call without the block, an argument without the attribute, end tags that are
missing, and all arguments as the one object ``arguments`` or ``input``. An argument that is given
again is left out. It is a call from the moment that it names a known function.
"""

import re
from collections.abc import Callable, Sequence

from gpu_worker.dialect.argument_types import ArgumentType
from gpu_worker.dialect.family.deepseek_dsml_arguments import (
    IS_EITHER,
    IS_JSON,
    IS_TEXT,
    DsmlArguments,
)
from gpu_worker.dialect.parser import begun
from gpu_worker.dialect.tools import CallPiece, Tool

DSML = "｜DSML｜"
OPENING = "<" + DSML
BLOCK, BLOCK_OF_V4 = "function_calls>", "tool_calls>"
INVOKE, PARAMETER = 'invoke name="', 'parameter name="'
BLOCK_ENDS = (f"</{DSML}{BLOCK}", f"</{DSML}{BLOCK_OF_V4}")
INVOKE_END, PARAMETER_END = f"</{DSML}invoke>", f"</{DSML}parameter>"

NAME = re.compile(r'[^"<>\n]{0,1024}')  # of functions and arguments
_GAP = re.compile(r"\s{0,256}")  # more has nothing to do with tags, and need not be waited for
_VALUE_ENDS = (OPENING, "</" + DSML)  # the token is in no value


class DsmlReader:
    """Reads one block. Its state is the method that takes what has come and is not settled."""

    def __init__(self, opening: str, tools: Sequence[Tool]) -> None:
        """Begin after a marker.

        Args:
            opening: ``OPENING``; ``DSML`` alone shows nothing.
            tools: that may be called.
        """
        self.over = opening == DSML
        self._tools = {tool.name: tool for tool in tools}
        self._seen = opening.removesuffix(DSML)  # of what may be no call, without the token
        self._held = ""  # what has come and is not settled
        self._pieces: list[CallPiece] = []
        self._step: Callable[[], bool] = self._after_opening
        self._begun = False  # there is a call
        self._arguments: DsmlArguments | None = None  # of the call that is being written

    @property
    def text(self) -> str:
        """What has been read as far as it is part of no call, without the token."""
        if self.over:
            return self._seen
        return "" if self._begun else self._seen + self._held.replace(DSML, "")

    def feed(self, text: str) -> tuple[list[CallPiece], str]:
        """Take more text; return pieces of calls and, once over, the text that follows."""
        self._held += text
        while not self.over and self._step():
            pass
        pieces, self._pieces = self._pieces, []
        rest = ""
        if self.over:
            rest, self._held = self._held, ""
        return pieces, rest

    def end(self) -> list[CallPiece]:
        """Take the end of the text; a call that has begun is complete without its end tags."""
        if self._arguments and self._step == self._in_value:
            self._write(self._arguments.add(self._held))
            self._end_value()
        self._finish()
        return self._pieces

    def _after_opening(self) -> bool:
        found = self._take_one_of(BLOCK, BLOCK_OF_V4, INVOKE)
        if found:
            self._step = self._in_name if found == INVOKE else self._in_block
        return bool(found)

    def _in_block(self) -> bool:
        found = self._take_one_of(OPENING + INVOKE, spaced=True)
        if found:
            self._step = self._in_name
        return bool(found)

    def _in_name(self) -> bool:
        name, rest = self._name()
        tool = self._tools.get(name)
        if tool is None or not rest.startswith(IS_EITHER):
            viable = not rest or (tool is not None and IS_EITHER.startswith(rest))
            return self._fail_unless(viable=viable)
        self._held = rest.removeprefix(IS_EITHER)
        self._seen = ""
        self._begun = True
        self._arguments = DsmlArguments(ArgumentType.of(tool))
        self._pieces.append(CallPiece(name=name))
        self._step = self._before_parameter
        return True

    def _before_parameter(self) -> bool:
        found = self._take_one_of(
            OPENING + PARAMETER, PARAMETER_END, INVOKE_END, *BLOCK_ENDS, spaced=True
        )
        if found == OPENING + PARAMETER:
            self._step = self._in_key
        elif found in (INVOKE_END, *BLOCK_ENDS):
            self._finish()
            self.over = found != INVOKE_END
            self._step = self._after_invoke
        return bool(found)

    def _in_key(self) -> bool:
        key, rest = self._name()
        found = next((each for each in (IS_TEXT, IS_JSON, IS_EITHER) if rest.startswith(each)), "")
        if not found:
            viable = any(each.startswith(rest) for each in (IS_TEXT, IS_JSON))
            return self._fail_unless(viable=viable)
        assert self._arguments is not None, "it has begun"
        self._held = rest.removeprefix(found)
        self._write(self._arguments.begin(key, found))
        self._step = self._in_value
        return True

    def _in_value(self) -> bool:
        assert self._arguments is not None, "it has begun"
        text = self._held
        found, at = None, len(text)
        if "<" in text:  # where an end begins
            found = min((at for end in _VALUE_ENDS if (at := text.find(end)) >= 0), default=None)
            at = at - max(begun(text, end) for end in _VALUE_ENDS) if found is None else found
        self._held = text[at:]
        self._write(self._arguments.add(text[:at]))
        if found is None:
            return False
        self._end_value()
        self._step = self._before_parameter
        return True

    def _after_invoke(self) -> bool:
        found = self._take_one_of(OPENING + INVOKE, *BLOCK_ENDS, spaced=True)
        if found == OPENING + INVOKE:
            self._step = self._in_name
        elif found:
            self._seen = ""
            self.over = True
        return bool(found)

    def _end_value(self) -> None:
        assert self._arguments is not None, "it has begun"
        self._write(self._arguments.end())

    def _finish(self) -> None:
        """End the call that is being written."""
        if self._arguments is not None:
            self._pieces.append(CallPiece(arguments=self._arguments.close(), complete=True))
            self._arguments = None

    def _write(self, arguments: str) -> None:
        if arguments:
            self._pieces.append(CallPiece(arguments=arguments))

    def _name(self) -> tuple[str, str]:
        """Return the name that what is held begins with, and the rest."""
        match = NAME.match(self._held)
        assert match is not None, "it matches nothing as well"
        return match[0], self._held[match.end() :]

    def _take_one_of(self, *literals: str, spaced: bool = False) -> str:
        """Take the one of these that comes next; nothing if it is not all there, or none comes.

        Args:
            literals: none of them begins with another.
            spaced: whitespace may stand before it.
        """
        gap = _GAP.match(self._held) if spaced else None
        text = self._held[gap.end() :] if gap else self._held
        found = next((literal for literal in literals if text.startswith(literal)), "")
        if found:
            taken = self._held[: len(self._held) - len(text) + len(found)]
            self._held = text.removeprefix(found)
            if self._arguments is None:
                self._seen += taken.replace(DSML, "")
        else:
            self._fail_unless(viable=any(literal.startswith(text) for literal in literals))
        return found

    def _fail_unless(self, *, viable: bool) -> bool:
        if not viable:
            self._finish()
            self.over = True
        return False
