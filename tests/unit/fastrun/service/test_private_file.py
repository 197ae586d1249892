"""Files that only their owner reads."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from fastrun.service import private_file


def mode(path):
    return path.stat().st_mode & 0o777


def test_only_its_owner_reads_it(tmp_path):
    """Nor may anybody else look into a folder that was made for it."""
    path = tmp_path / "new" / "key.pem"
    private_file.write(path, b"secret")
    assert path.read_bytes() == b"secret"
    assert (mode(path), mode(path.parent)) == (0o600, 0o700)


def test_what_was_there_is_replaced_with_who_may_read_it(tmp_path):
    """A file that others could read is theirs no more."""
    path = tmp_path / "key.pem"
    path.write_bytes(b"old")
    path.chmod(0o644)
    private_file.write(path, b"new")
    assert (path.read_bytes(), mode(path)) == (b"new", 0o600)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("there", ["a link", "a file for all"])
def test_what_lies_in_the_way_of_a_private_file(tmp_path, there):
    """Somebody else's link is not followed, nor are the permissions of what was left taken over."""
    path, elsewhere = tmp_path / "key.pem", tmp_path / "elsewhere"
    partial = tmp_path / ".key.pem"
    elsewhere.write_text("theirs")
    if there == "a link":
        partial.symlink_to(elsewhere)
    else:
        partial.write_text("left")
        partial.chmod(0o666)
    private_file.write(path, b"secret")
    assert path.read_text() == "secret"
    assert not path.is_symlink()
    assert mode(path) == 0o600
    assert elsewhere.read_text() == "theirs"


def test_a_file_that_cannot_be_written_stays_as_it_was(tmp_path):
    """And nothing of the new one is left behind."""
    path = tmp_path / "key.pem"
    path.mkdir()
    with pytest.raises(OSError, match=r"key\.pem"):
        private_file.write(path, b"new")
    assert [each.name for each in tmp_path.iterdir()] == ["key.pem"]


def test_whoever_writes_at_the_same_time_harms_nobody(tmp_path):
    """Services that share a folder renew its files at once: one of them wins, and all succeed."""
    path = tmp_path / "cert.pem"
    contents = [bytes([letter]) * 4096 for letter in b"abcd"]

    def write(content):
        for _ in range(25):
            private_file.write(path, content)
            assert path.read_bytes() in contents

    with ThreadPoolExecutor(len(contents)) as writers:
        list(writers.map(write, contents))
    assert list(tmp_path.iterdir()) == [path]
