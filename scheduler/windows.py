"""How much was used in the last minute: a sliding window of one-second cells."""

from collections import deque

WINDOW_S = 60.0
CELL_S = 1.0


class Cell:
    """What was used within one second; times are monotonic seconds."""

    __slots__ = ("amount", "ends_at", "first_at", "is_over")

    def __init__(self, now: float) -> None:
        self.first_at = now
        self.ends_at = now + WINDOW_S
        """When it leaves the window: by then the last of it is a minute old, and none is older."""
        self.amount = 0
        self.is_over = False
        """It has left the window: what it holds counts no more."""


class Window:
    """A sum that forgets what is older than a minute.

    What a cell holds leaves together with the last of it, so each amount counts for 60 s at least
    and for less than 61 s: in no minute, wherever it begins, can more be added than a limit allows.
    """

    __slots__ = ("_cells", "_total")

    def __init__(self) -> None:
        self._cells: deque[Cell] = deque()
        self._total = 0

    def total(self, now: float) -> int:
        """Return the sum."""
        cells = self._cells
        while cells and cells[0].ends_at <= now:
            cell = cells.popleft()
            cell.is_over = True
            self._total -= cell.amount
        return self._total

    def add(self, amount: int, now: float) -> Cell:
        """Add to it.

        Returns:
            Where it was added, so that it can be taken back.
        """
        self.total(now)
        if not self._cells or now - self._cells[-1].first_at >= CELL_S:
            self._cells.append(Cell(now))
        cell = self._cells[-1]
        cell.ends_at = now + WINDOW_S
        cell.amount += amount
        self._total += amount
        return cell

    def take_back(self, cell: Cell, amount: int, now: float) -> None:
        """Undo what was added there, or a part of it, if it still counts."""
        self.total(now)
        if not cell.is_over:
            cell.amount -= amount
            self._total -= amount

    def opens_in_s(self, amount: int, limit: int, now: float) -> float:
        """Return how long it takes until so much can be added within a limit; at most a minute."""
        excess = self.total(now) + amount - limit
        if excess <= 0:
            return 0.0
        for cell in self._cells:
            excess -= cell.amount
            if excess <= 0:
                return cell.ends_at - now
        return WINDOW_S

    def empty_in_s(self, now: float) -> float:
        """Return how long it takes until nothing of it is left, if nothing is added."""
        self.total(now)
        last = (cell.ends_at for cell in reversed(self._cells) if cell.amount)
        return max(0.0, next(last, now) - now)
