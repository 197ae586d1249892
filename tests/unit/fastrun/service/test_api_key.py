from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastrun.service import api_key

KEYS = st.integers().map(lambda seed: api_key.generate(Random(seed)))


@given(KEYS)
def test_generated_keys_are_well_formed(key):
    """A generated key is fr_ and 38 letters and digits, and is accepted."""
    assert len("fr_") + 38 == len(key)
    assert api_key.well_formed(key)


def test_known_key():
    """The format is fixed: keys that were issued stay well-formed."""
    assert api_key.well_formed("fr_8aspm4G7VmSUfOoD6V1vrORcmn0iSHkp39BZ9e")


@given(KEYS, st.data())
def test_one_wrong_character_is_refused(key, data):
    """A key with any one character replaced is refused."""
    place = data.draw(st.integers(0, len(key) - 1))
    wrong = data.draw(st.sampled_from(api_key.ALPHABET).filter(lambda c: c != key[place]))
    assert not api_key.well_formed(key[:place] + wrong + key[place + 1 :])


@given(KEYS, st.data())
def test_swapped_neighbours_are_refused(key, data):
    """A key with two neighbours swapped is refused."""
    place = data.draw(st.integers(0, len(key) - 2).filter(lambda i: key[i] != key[i + 1]))
    swapped = key[:place] + key[place + 1] + key[place] + key[place + 2 :]
    assert not api_key.well_formed(swapped)


@pytest.mark.parametrize("junk", ["", "fr_", "sk-abc", "fr_" + "é" * 38, "fr_" + "0" * 38, "\0"])
def test_junk_is_refused(junk):
    """What is no key is refused, whatever it is."""
    assert not api_key.well_formed(junk)


@given(KEYS)
def test_surroundings_are_refused(key):
    """A key with anything around it is no key."""
    for text in (key + "\n", " " + key, key + key[-1]):
        assert not api_key.well_formed(text)


@given(st.text())
def test_any_text_gets_an_answer(text):
    """Checking a text never fails."""
    assert api_key.well_formed(text) in (True, False)


def test_keys_differ():
    """Two keys of one source differ."""
    random = Random(7)
    assert api_key.generate(random) != api_key.generate(random)


def test_sha256_and_prefix():
    """Services speak of a key by the 32 bytes of its SHA-256, people by its first 8 characters."""
    assert len(api_key.key_sha256("fr_abcdefgh")) == 32
    assert api_key.display_prefix("fr_abcdefgh") == "fr_abcde"
