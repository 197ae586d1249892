"""Faults of our own: one keeps nobody else from what is theirs."""

from collections.abc import Callable, Iterable


def do_all(steps: Iterable[Callable[[], object]]) -> None:
    """Take several steps, also those after one that fails.

    Raises:
        ExceptionGroup: some failed.
    """
    faults = []
    for step in steps:
        try:
            step()
        except Exception as fault:  # noqa: BLE001 - whatever it is, it is raised in the end
            faults.append(fault)
    if faults:
        raise ExceptionGroup("some steps failed", faults)
