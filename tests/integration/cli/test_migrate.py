"""`fastrun migrate`, and where it looks for the database."""

import pytest
from typer.testing import CliRunner

from auth_service.migrate import load
from fastrun.cli.app import make_app
from fastrun.cli.errors import CommandError

NAMES = ("DATABASE_URL", "DATABASE_URL_FILE", "FASTRUN_CONFIG")


def migrate(monkeypatch, **environ):
    """Run it with these of its variables, and no others."""
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, str(value))
    result = CliRunner().invoke(make_app("migrate"), ["migrate"])
    if isinstance(result.exception, CommandError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def test_it_looks_where_the_auth_service_does(empty_database, tmp_path, monkeypatch):
    """In the variable, in the file that one names, and in that of all settings."""
    settings = tmp_path / "fastrun.toml"
    settings.write_text(f'[auth]\ndatabase_url = "{empty_database}"\npepper = "no matter"\n')
    applied = migrate(monkeypatch, FASTRUN_CONFIG=settings)
    assert applied.splitlines() == [f"applied {migration.name}" for migration in load()]
    secret = tmp_path / "url"
    secret.write_text(f"{empty_database}\n")
    assert migrate(monkeypatch, DATABASE_URL_FILE=secret) == "nothing to apply\n"
    settings.write_text('[auth]\ndatabase_url = "postgresql://127.0.0.1:1/nobody"\n')
    environ = {"DATABASE_URL": empty_database, "FASTRUN_CONFIG": settings}
    assert migrate(monkeypatch, **environ) == "nothing to apply\n"


def test_what_is_missing_or_wrong_is_said(tmp_path, monkeypatch):
    """No database at all is one thing, a file that cannot be read another."""
    with pytest.raises(CommandError, match="DATABASE_URL is not set"):
        migrate(monkeypatch)
    with pytest.raises(CommandError, match="FASTRUN_CONFIG"):
        migrate(monkeypatch, FASTRUN_CONFIG=tmp_path / "nowhere.toml")
