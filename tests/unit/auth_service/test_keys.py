import hashlib
import hmac

import pytest

from auth_service.errors import InvalidFieldError
from auth_service.keys import Pepper, Peppers

NEW = Pepper(2, b"n" * 32)
OLD = Pepper(1, b"o" * 32)
SHA256 = hashlib.sha256(b"key").digest()


def test_digest():
    """A digest is the HMAC-SHA-256 of the key's SHA-256."""
    assert hmac.new(b"n" * 32, SHA256, "sha256").digest() == NEW.digest(SHA256)


def test_pepper_matters():
    """The same key has another digest with another pepper."""
    assert NEW.digest(SHA256) != OLD.digest(SHA256)


def test_rotation():
    """A key may be stored with the current pepper or with a previous one."""
    assert [NEW.digest(SHA256), OLD.digest(SHA256)] == Peppers(NEW, [OLD]).digests(SHA256)
    assert Peppers(NEW, [OLD]).current is NEW


def test_peppers_of_settings():
    """Peppers have the numbers of the order in which they were used; the last is that of new keys."""
    first, second = "6f" * 32, "6e" * 32
    assert Peppers.of([first]).current == Pepper(1, b"o" * 32)
    assert Peppers.of([first, second]).current == NEW
    assert Peppers.of([first, second]).fingerprints() == {
        1: OLD.fingerprint(),
        2: NEW.fingerprint(),
    }


def test_retired_pepper():
    """One that no key needs any more keeps its number, and makes no digests."""
    peppers = Peppers.of(["retired", "6e" * 32])
    assert peppers.current == NEW
    assert peppers.digests(SHA256) == [NEW.digest(SHA256)]
    assert (peppers.former, peppers.retired) == ({1}, {1})
    assert Peppers.of(["6f" * 32, "6e" * 32]).former == {1}


def test_fingerprint():
    """A pepper's fingerprint tells it from others, and is no digest of a key."""
    assert NEW.fingerprint() == NEW.fingerprint()
    assert NEW.fingerprint() != OLD.fingerprint()
    assert len(NEW.fingerprint()) == 32
    with pytest.raises(InvalidFieldError):
        NEW.digest(b"fingerprint")


def test_pepper_is_not_shown():
    """A pepper's secret does not show in logs."""
    assert "nnn" not in repr(NEW)


@pytest.mark.parametrize("length", [0, 31, 33])
def test_wrong_length(length):
    """What has not 32 bytes is no SHA-256."""
    with pytest.raises(InvalidFieldError, match="32 bytes"):
        NEW.digest(b"x" * length)


def test_bad_peppers():
    """A short secret, an id out of range and an id used twice are refused."""
    for wrong in (
        lambda: Pepper(1, b"short"),
        lambda: Pepper(-1, b"x" * 32),
        lambda: Pepper(1 << 15, b"x" * 32),
        lambda: Peppers(NEW, [NEW]),
    ):
        with pytest.raises(ValueError, match="pepper"):
            wrong()
