"""Settings from environment and TOML."""

from typing import Annotated

import msgspec
import pytest

from fastrun.service import config


class Config(msgspec.Struct, frozen=True, kw_only=True):
    database_url: Annotated[str, config.environment("DATABASE_URL")]
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 8000
    names: list[str] = []
    strict: bool = False
    pepper: str = ""


def test_environment_is_read_and_converted():
    """Numbers, booleans and comma-separated lists come out of strings."""
    environ = {
        "DATABASE_URL": "postgresql://db",
        "FASTRUN_EDGE_PORT": "9000",
        "FASTRUN_EDGE_NAMES": "a, b,",
        "FASTRUN_EDGE_STRICT": "true",
    }
    assert config.load(Config, "edge", environ) == Config(
        database_url="postgresql://db", port=9000, names=["a", "b"], strict=True
    )


def test_file_is_below_environment(tmp_path):
    """The environment wins over the TOML table, and the table over the default."""
    path = tmp_path / "fastrun.toml"
    path.write_text('[edge]\nport = 1\nnames = ["x"]\n[auth]\nport = 2\n')
    environ = {"FASTRUN_CONFIG": str(path), "DATABASE_URL": "d", "FASTRUN_EDGE_PORT": "3"}
    loaded = config.load(Config, "edge", environ)
    assert (loaded.port, loaded.names) == (3, ["x"])


def test_secret_from_a_file(tmp_path):
    """A name with _FILE reads the value from that file, without its last newline."""
    path = tmp_path / "pepper"
    path.write_text("hot\n")
    environ = {"DATABASE_URL": "d", "FASTRUN_EDGE_PEPPER_FILE": str(path)}
    assert config.load(Config, "edge", environ).pepper == "hot"


def test_every_problem_is_named_at_once(tmp_path):
    """A missing, a wrong and two unknown settings give four problems, not one."""
    path = tmp_path / "fastrun.toml"
    path.write_text("[edge]\nprot = 1\n")
    environ = {
        "FASTRUN_CONFIG": str(path),
        "FASTRUN_EDGE_PORT": "many",
        "FASTRUN_EDGE_STRIKT": "1",
    }
    with pytest.raises(config.ConfigError) as caught:
        config.load(Config, "edge", environ)
    problems = caught.value.problems
    assert len(problems) == 4
    assert "DATABASE_URL: must be set" in problems
    assert "FASTRUN_EDGE_PORT: must be a whole number of at least 0 and at most 65535" in problems
    assert "edge.prot: unknown setting, did you mean port?" in problems
    assert "FASTRUN_EDGE_STRIKT: unknown setting, did you mean FASTRUN_EDGE_STRICT?" in problems


class Described(msgspec.Struct, frozen=True):
    """A setting of each kind."""

    addresses: list[config.Address] = []
    level: config.LogLevel = "info"
    strict: bool = False
    slots: int = 1
    share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    days: Annotated[list[int], msgspec.Meta(max_length=1)] = []


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("addresses", "a:1,b", "host:port"),
        ("level", "loud", "one of debug, info, warning, error"),
        ("strict", "perhaps", "true or false"),
        ("slots", "many", "a whole number"),
        ("share", "1.5", "a number of more than 0 and at most 1"),
        ("days", "1,x", "a whole number"),
    ],
)
def test_a_problem_says_what_a_value_has_to_be(name, value, wanted):
    """What programs read as a type, a pattern or a bound, people read in words."""
    variable = f"FASTRUN_EDGE_{name.upper()}"
    with pytest.raises(config.ConfigError) as caught:
        config.load(Described, "edge", {variable: value})
    assert caught.value.problems == [f"{variable}: must be {wanted}"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "No such file or directory"),
        ("[egde]\nport = 1\n", "[egde] is no service, did you mean edge?"),
        ("port = 1\n", "[port] is no service"),
        ("edge = 1\n", "[edge] must be a table"),
    ],
)
def test_a_file_that_says_nothing_to_a_service_is_a_problem(tmp_path, text, problem):
    """A file that is not there, and a table that no service reads, are named, not passed over."""
    path = tmp_path / "fastrun.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(config.ConfigError) as caught:
        config.load(Described, "edge", {"FASTRUN_CONFIG": str(path)})
    assert caught.value.problems == [f"FASTRUN_CONFIG: {path}: {problem}"]


@pytest.mark.parametrize("name", ["FASTRUN_EDGE_PEPPER_FILE", "FASTRUN_CONFIG"])
def test_a_file_that_is_no_text_is_a_problem(tmp_path, name):
    """A file of bytes that are no UTF-8 is named, and none of it is shown."""
    path = tmp_path / "bytes"
    path.write_bytes(b"hunter2 \xff")
    with pytest.raises(config.ConfigError) as caught:
        config.load(Config, "edge", {"DATABASE_URL": "d", name: str(path)})
    (problem,) = caught.value.problems
    assert problem.startswith(f"{name}: {path}: ")
    assert "hunter2" not in problem


def test_values_never_stand_in_a_problem():
    """A wrong value may be a secret, so it is not repeated."""
    with pytest.raises(config.ConfigError) as caught:
        config.load(Config, "edge", {"DATABASE_URL": "d", "FASTRUN_EDGE_PORT": "hunter2"})
    assert "hunter2" not in str(caught.value)


def test_exit_status_is_2(capsys):
    """load_or_exit prints the problems to stderr and exits with 2."""
    with pytest.raises(SystemExit) as caught:
        config.load_or_exit(Config, "edge", {})
    assert caught.value.code == 2
    assert capsys.readouterr().err == "edge: DATABASE_URL: must be set\n"


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({}, None),
        ({"FASTRUN_EDGE_PORT": "3"}, ("FASTRUN_EDGE_PORT", "3")),
        ({"FASTRUN_EDGE_PORT_FILE": "port"}, ("FASTRUN_EDGE_PORT_FILE", "4")),
        ({"FASTRUN_CONFIG": "fastrun.toml"}, ("port in FASTRUN_CONFIG", 1)),
        ({"FASTRUN_AUTH_PORT": "3", "FASTRUN_CONFIG": "nowhere"}, None),
    ],
)
def test_explicit(tmp_path, monkeypatch, environ, found):
    """Who starts a service can tell what was set, and where, from what was left to it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "port").write_text("4\n")
    (tmp_path / "fastrun.toml").write_text("[edge]\nport = 1\n")

    assert config.explicit("edge", "port", environ) == found


@pytest.mark.parametrize(
    ("address", "parts"), [("127.0.0.1:80", ("127.0.0.1", 80)), ("[::1]:0", ("::1", 0))]
)
def test_an_address_falls_into_host_and_port(address, parts):
    """The brackets of an IPv6 host belong to the address, not to the host."""
    assert config.host_and_port(address) == parts


@pytest.mark.parametrize(
    ("environ", "value"),
    [
        ({"DATABASE_URL": "d", "FASTRUN_CONFIG": "fastrun.toml"}, "d"),
        ({"DATABASE_URL_FILE": "url"}, "f"),
        ({"FASTRUN_CONFIG": "fastrun.toml"}, "t"),
        ({}, None),
    ],
)
def test_load_one(tmp_path, monkeypatch, environ, value):
    """A command that needs one setting finds it where its service does, whatever else is set."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "url").write_text("f\n")
    (tmp_path / "fastrun.toml").write_text('[edge]\nsurl = 1\ndatabase_url = "t"\n')
    assert config.load_one(Config, "edge", "database_url", environ) == value
    assert config.load_one(Config, "edge", "port", environ) == 8000
    found = config.explicit("edge", "database_url", environ, name="DATABASE_URL")
    assert (found and found[1]) == value


@pytest.mark.parametrize(
    "environ", [{"FASTRUN_EDGE_PORT": "many"}, {"FASTRUN_CONFIG": "/nowhere/fastrun.toml"}]
)
def test_load_one_names_what_is_wrong(environ):
    """A value that is wrong, or a file that cannot be read, is no value that is missing."""
    with pytest.raises(config.ConfigError, match=next(iter(environ))):
        config.load_one(Config, "edge", "port", environ)


class Stored(msgspec.Struct, frozen=True):
    """What keeps something in Postgres."""

    database_url: config.DatabaseUrl
    other_url: config.DatabaseUrlOrNone = ""


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://fastrun:secret@127.0.0.1:5432/postgres?sslmode=require",
        "postgres://db",
        "postgresql:///x?host=/var/run/postgresql",
        "postgresql://%2Ftmp/x",
        "postgresql://u:p%5B%23@[::1]:5432,db-2:5433/x",
        "postgresql://u:p@ss:w%rd@db/x",
    ],
)
def test_a_database(url):
    """Hosts, addresses and sockets of all kinds are taken as they are."""
    assert config.load(Stored, "auth", {"DATABASE_URL": url}).database_url == url


@pytest.mark.parametrize("password", ["hunter[2", "hunter]2", "hunter/2", "hunter?2", "hunter#2"])
def test_a_password_that_breaks_a_url(password):
    """It is told how to write it, and not repeated, as the driver's own words would."""
    with pytest.raises(config.ConfigError) as caught:
        config.load(Stored, "auth", {"DATABASE_URL": f"postgresql://u:{password}@db/x"})
    problems = dict(problem.split(": ", 1) for problem in caught.value.problems)
    assert problems["DATABASE_URL"].endswith("with [ ] / ? # in a password as %5B %5D %2F %3F %23")
    assert "hunter" not in str(caught.value)


@pytest.mark.parametrize("url", ["", "mysql://db/x", "db:5432", "postgresql://db:port/x"])
def test_no_database(url):
    """What is no URL of a Postgres is refused before anybody connects."""
    with pytest.raises(config.ConfigError):
        config.load(Stored, "auth", {"DATABASE_URL": url})
