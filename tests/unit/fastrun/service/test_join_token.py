"""Tokens by which machines join."""

from random import Random

import pytest

from fastrun.service.join_token import JoinToken, new_secret, secret_sha256

CA = "0123456789abcdef" * 4


def token():
    return JoinToken(new_secret(Random(1)), CA)


def test_a_token_is_read_as_it_was_written():
    """Secret and fingerprint come back from its text, with blanks around it too."""
    made = token()

    assert JoinToken.parse(f" {made.text}\n") == made
    assert len(made.text) == 106
    assert made.text.isascii()
    assert made.text.replace("_", "").isalnum()


@pytest.mark.parametrize("place", [4, 20, 40, 99, 105])
def test_a_typo_is_seen(place):
    """One wrong character anywhere is told, and the token not repeated."""
    text = token().text
    wrong = text[:place] + ("0" if text[place] != "0" else "1") + text[place + 1 :]

    with pytest.raises(ValueError, match="typo") as told:
        JoinToken.parse(wrong)
    assert wrong not in str(told.value)


@pytest.mark.parametrize("cut", [0, 4, 105])
def test_half_a_token_is_seen(cut):
    """What is too short is no token."""
    with pytest.raises(ValueError, match="whole"):
        JoinToken.parse(token().text[:cut])


def test_the_secret_is_in_no_representation():
    """What shows a token by accident shows no secret."""
    made = token()

    assert made.secret not in repr(made)


def test_the_service_knows_a_digest_of_the_secret_only():
    """Two secrets have two digests of 32 bytes."""
    assert len(secret_sha256("a")) == 32
    assert secret_sha256("a") != secret_sha256("b")
