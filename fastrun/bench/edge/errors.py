"""Why an edge cannot be measured."""


class EdgeBenchError(Exception):
    """The message says what to do."""
