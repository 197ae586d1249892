"""The migrations are safe beside running code, as far as a linter can tell."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def lint(*files):
    """What Squawk says of migrations, with our settings; empty when it finds nothing."""
    squawk = shutil.which("squawk", path=str(Path(sys.executable).parent))
    assert squawk, "squawk is part of the dev extra"
    command = [squawk, "--config", str(ROOT / ".squawk.toml"), *map(str, files)]
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    return result.stdout + result.stderr if result.returncode else ""


def test_squawk_finds_nothing():
    """Squawk agrees with every migration, or the file says beside it why not."""
    files = sorted((ROOT / "auth_service" / "migrations").glob("*.sql"))
    assert files
    assert not lint(*files)


@pytest.mark.parametrize(
    "statement",
    [
        "alter table keys drop column name",
        "alter table keys rename column name to title",
        "alter table keys rename to api_keys",
        "drop table keys",
        "alter table keys alter column name type integer",
        "alter table keys alter column name set not null",
        "alter table keys add column more text not null",
        "create index more on keys (name)",
    ],
)
def test_what_would_break_running_code_is_found(tmp_path, statement):
    """The version before must go on: nothing that it uses goes, changes or is locked for long."""
    file = tmp_path / "0001_more.sql"
    file.write_text(f"{statement};\n")
    assert lint(file)


def test_what_only_adds_is_let_through(tmp_path):
    """A column that may be absent and a table of its own disturb nobody."""
    file = tmp_path / "0001_more.sql"
    file.write_text(
        "alter table keys add column more text;\ncreate table more (id text primary key);\n"
    )
    assert not lint(file)
