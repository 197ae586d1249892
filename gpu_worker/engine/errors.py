"""What can be wrong with a model before it runs."""


class ModelError(Exception):
    """No usable model; the message is one sentence that says what to do."""
