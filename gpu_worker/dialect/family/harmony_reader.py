"""Reads the arguments of a call in harmony, which are the body of a message to a function."""

from gpu_worker.dialect.json_scan import JsonScan
from gpu_worker.dialect.tools import CallPiece


class HarmonyReader:
    """Reads one call, whose name the header has told.

    Arguments are passed on as the model writes them. A bracket ends an object; anything else goes
    on to the end of the message. An empty message is a call without arguments.
    """

    text = ""  # a message to a function is a call, whatever it says

    def __init__(self, name: str) -> None:
        """Begin after the header.

        Args:
            name: of the function.
        """
        self.over = False
        self._name = name
        self._scan: JsonScan | None = None
        self._gap = ""  # whitespace that nothing has followed yet
        self._begun = False

    def feed(self, text: str) -> tuple[list[CallPiece], str]:
        """Take more text; return pieces of the call and, once over, the text that follows."""
        pieces, self._name = [CallPiece(name=self._name)] if self._name else [], ""
        if not self._begun:
            text = text.lstrip()
            self._begun = bool(text)
            self._scan = JsonScan("{") if text.startswith("{") else None
        if not text:
            return pieces, ""
        if self._scan is None:
            return [*pieces, *self._any(text)], ""
        end = self._scan.feed(text, 0)
        self.over = self._scan.done
        return [*pieces, CallPiece(arguments=text[:end], complete=self.over)], text[end:]

    def end(self) -> list[CallPiece]:
        """Take the end of the message."""
        if self.over:
            return []
        self.over = True
        return [CallPiece(name=self._name, arguments="" if self._begun else "{}", complete=True)]

    def _any(self, text: str) -> list[CallPiece]:
        text = self._gap + text
        body = text.rstrip()
        self._gap = text[len(body) :]
        return [CallPiece(arguments=body)] if body else []
