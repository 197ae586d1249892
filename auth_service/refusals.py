"""How what the domain refuses travels to callers."""

from collections.abc import Awaitable
from typing import TypeVar

from auth_service.errors import (
    AlreadyExistsError,
    AuthServiceError,
    InvalidFieldError,
    NotFoundError,
    StateError,
    StoreUnavailableError,
)
from fastrun.service.errors import ServiceError
from fastrun.v1.error_pb2 import ErrorReason

T = TypeVar("T")

_REASONS = {
    AlreadyExistsError: ErrorReason.ERROR_REASON_ALREADY_EXISTS,
    InvalidFieldError: ErrorReason.ERROR_REASON_INVALID_REQUEST,
    NotFoundError: ErrorReason.ERROR_REASON_NOT_FOUND,
    StateError: ErrorReason.ERROR_REASON_CONFLICT,
    StoreUnavailableError: ErrorReason.ERROR_REASON_UNAVAILABLE,
}


async def told(call: Awaitable[T]) -> T:
    """Await the domain, and turn what it refuses into what travels.

    Raises:
        ServiceError: with the reason that fits.
    """
    try:
        return await call
    except AuthServiceError as error:
        reason = _REASONS.get(type(error), ErrorReason.ERROR_REASON_INTERNAL)
        raise ServiceError(reason, str(error)) from error
