"""What may go wrong on one machine, said so that it can be put right."""


class LocalError(Exception):
    """`fastrun up` cannot go on; the message is one sentence that says what to do."""
