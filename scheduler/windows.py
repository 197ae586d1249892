"""How much was used in the last minute: a sliding window of one-second cells."""

from collections import deque
from collections.abc import Callable

WINDOW_S = 60.0
CELL_S = 1.0


class Cell:
    """What was used within one second; times are monotonic seconds."""

    __slots__ = ("ends_at", "first_at", "is_over", "requests", "tokens")

    def __init__(self, now: float) -> None:
        self.first_at = now
        self.ends_at = now + WINDOW_S
        """When it leaves the window: by then the last of it is a minute old, and none is older."""
        self.requests = 0
        self.tokens = 0
        self.is_over = False
        """It has left the window: what it holds counts no more."""


class Window:
    """Sums that forget what is older than a minute.

    What a cell holds leaves together with the last of it, so each amount counts for 60 s at least
    and for less than 61 s: in no minute, wherever it begins, can more be added than a limit allows.
    """

    __slots__ = ("_cells", "requests", "tokens")

    def __init__(self) -> None:
        self._cells: deque[Cell] = deque()
        self.requests = 0
        """As of the last change, or lapse()."""
        self.tokens = 0

    def lapse(self, now: float) -> None:
        """Forget what is older than a minute by now."""
        cells = self._cells
        while cells and cells[0].ends_at <= now:
            cell = cells.popleft()
            cell.is_over = True
            self.requests -= cell.requests
            self.tokens -= cell.tokens

    def add(self, requests: int, tokens: int, now: float) -> Cell:
        """Add to it.

        Returns:
            Where it was added, so that it can be taken back.
        """
        self.lapse(now)
        cells = self._cells
        if not cells or now - cells[-1].first_at >= CELL_S:
            cells.append(Cell(now))
        cell = cells[-1]
        cell.ends_at = now + WINDOW_S
        cell.requests += requests
        cell.tokens += tokens
        self.requests += requests
        self.tokens += tokens
        return cell

    def take_back(self, cell: Cell, requests: int, tokens: int, now: float) -> None:
        """Undo what was added there, or a part of it, if it still counts."""
        self.lapse(now)
        if not cell.is_over:
            cell.requests -= requests
            cell.tokens -= tokens
            self.requests -= requests
            self.tokens -= tokens

    def opens_in_s(self, excess: int, of: Callable[[Cell], int], now: float) -> float:
        """Return how long it takes until what is too much has left; at most a minute."""
        for cell in self._cells:
            excess -= of(cell)
            if excess <= 0:
                return cell.ends_at - now
        return WINDOW_S

    def empty_in_s(self, of: Callable[[Cell], int], now: float) -> float:
        """Return how long it takes until nothing of it is left, if nothing is added."""
        for cell in reversed(self._cells):
            if of(cell):
                return max(0.0, cell.ends_at - now)
        return 0.0
