"""What the beginnings of prompts have in common."""

import enum


class Prefixes(enum.StrEnum):
    """What schedulers are told of them."""

    NONE = "none"
    UNIQUE = "unique"
    SHARED = "shared"
    """Most of each prompt is that of a conversation, which others go on with as well."""
