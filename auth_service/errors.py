"""Everything that may go wrong in the domain of accounts and keys."""


class AuthServiceError(Exception):
    """The root of these; the message is one sentence for people."""


class StoreUnavailableError(AuthServiceError):
    """Postgres cannot be asked in time; asking again later may work."""


class InvalidFieldError(AuthServiceError):
    """A value that no account or key can have."""


class NotFoundError(AuthServiceError):
    """No such account or key."""


class AlreadyExistsError(AuthServiceError):
    """A name or a key that is taken."""


class StateError(AuthServiceError):
    """The account's state does not allow the change."""


class SchemaError(AuthServiceError):
    """The database's schema is not the one that this code needs, or cannot be made so."""


class PepperError(AuthServiceError):
    """The stored keys were made with another pepper: with this one, none of them is valid."""

    def __init__(self) -> None:
        super().__init__(
            "the stored keys were made with another pepper: set FASTRUN_AUTH_PEPPER to what it was "
            "(fastrun up has it in the file pepper of its data folder)"
        )


class RetiredPepperError(AuthServiceError):
    """A pepper is called retired, and keys that have not ended were made with it."""

    def __init__(self, keys: int) -> None:
        super().__init__(
            "a pepper that FASTRUN_AUTH_PREVIOUS_PEPPERS calls retired is needed by keys that have "
            f"not ended ({keys}): put it back, and see fastrun key list --pepper NUMBER"
        )
