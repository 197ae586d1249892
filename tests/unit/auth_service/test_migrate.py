import pytest

from auth_service.errors import SchemaError
from auth_service.migrate import Migration, load, pending

ONE = Migration(1, "0001_one.sql", "select 1")
TWO = Migration(2, "0002_two.sql", "-- no-transaction\nselect 2")


def test_pending():
    """What was not applied is pending, in order."""
    assert pending([ONE, TWO], {}) == [ONE, TWO]
    assert pending([ONE, TWO], {1: ONE.sha256}) == [TWO]
    assert pending([ONE, TWO], {1: ONE.sha256, 2: TWO.sha256}) == []


def test_newer_database():
    """Versions that a newer code has applied do not matter to this one."""
    assert pending([ONE], {1: ONE.sha256, 2: "of a newer code"}) == []


def test_edited():
    """A file that was edited after it was applied is refused."""
    with pytest.raises(SchemaError, match=r"0001_one\.sql was edited"):
        pending([ONE], {1: "another"})


def test_out_of_order():
    """A file older than an applied one is refused."""
    with pytest.raises(SchemaError, match=r"0001_one\.sql was never applied"):
        pending([ONE, TWO], {2: TWO.sha256})


def test_in_transaction():
    """A file is a transaction unless its first line says otherwise."""
    assert ONE.in_transaction
    assert not TWO.in_transaction


def test_ours():
    """The service's own migrations are numbered from 1."""
    assert [migration.version for migration in load()][:1] == [1]


@pytest.mark.parametrize("names", [["0002_a.sql"], ["0001_a.sql", "0001_b.sql"], ["0001-a.sql"]])
def test_bad_names(tmp_path, names):
    """Gaps, doubles and other names are refused."""
    for name in names:
        (tmp_path / name).write_text("select 1")
    with pytest.raises(SchemaError, match="should be the migration number"):
        load(tmp_path)
