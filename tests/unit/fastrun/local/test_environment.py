import pytest

from auth_service.config import Config as Auth
from edge.config import Config as Edge
from fastrun.local import environment
from fastrun.local.errors import LocalError
from fastrun.local.folder import State
from gpu_worker.config import Config as Worker
from scheduler.config import Config as Scheduler

CONFIGS = {"auth": Auth, "edge": Edge, "scheduler": Scheduler, "worker": Worker}

AUTH_TABLE = '[auth]\ndatabase_url = "postgresql://db"\n'
STATE = State(
    pid=1,
    base_url="http://127.0.0.1:8000/v1",
    model="tiny",
    auth_address="127.0.0.1:1",
    scheduler_address="127.0.0.1:2",
)


def command(environ):
    return environment.of_command(environ, STATE, "fr_key", data="/data", scripts="/venv/bin")


def test_service_takes_free_ports():
    """A service that was never started takes free ports on this machine."""
    environ = environment.of_service({}, "auth", {})

    assert environ == {
        "FASTRUN_AUTH_LISTEN": "127.0.0.1:0",
        "FASTRUN_AUTH_ADMIN_LISTEN": "127.0.0.1:0",
    }


def test_service_keeps_its_port():
    """A service that is started again takes the port that others know; its admin port is any."""
    environ = environment.of_service({}, "edge", {}, port=8)

    assert environ["FASTRUN_EDGE_LISTEN"] == "127.0.0.1:8"
    assert environ["FASTRUN_EDGE_ADMIN_LISTEN"] == "127.0.0.1:0"


def test_service_settings():
    """Settings become text, lists are joined, None is left to the service, the rest stands."""
    settings = {"addresses": ["a:1", "b:2"], "slots": 4, "model": None, "reuse_port": True}

    environ = environment.of_service({"HOME": "/h"}, "worker", settings)

    assert environ["FASTRUN_WORKER_ADDRESSES"] == "a:1,b:2"
    assert environ["FASTRUN_WORKER_SLOTS"] == "4"
    assert environ["FASTRUN_WORKER_REUSE_PORT"] == "true"
    assert environ["HOME"] == "/h"
    assert "FASTRUN_WORKER_MODEL" not in environ


@pytest.mark.parametrize(("service", "field"), environment.OWN)
def test_own_settings(service, field):
    """What `fastrun up` would not heed is refused, not passed over in silence."""
    name = f"FASTRUN_{service.upper()}_{field.upper()}"

    assert field in CONFIGS[service].__struct_fields__
    with pytest.raises(LocalError, match=f"fastrun up sets {name} itself .*: leave it unset"):
        environment.check_own({name: "127.0.0.1:1"})


def test_own_settings_in_a_file(tmp_path):
    """A file of settings is heard like the environment."""
    (tmp_path / "fastrun.toml").write_text('[edge]\nlisten = "0.0.0.0:80"\n')

    with pytest.raises(LocalError, match="listen in FASTRUN_CONFIG"):
        environment.check_own({"FASTRUN_CONFIG": str(tmp_path / "fastrun.toml")})


def test_other_settings():
    """All else is the user's to set, and reaches the service."""
    ours = {"FASTRUN_WORKER_GRACE_S": "60", "FASTRUN_EDGE_LOG_LEVEL": "debug"}
    environment.check_own(ours)

    assert ours.items() <= environment.of_service(ours, "worker", {"model": None}).items()


@pytest.mark.parametrize("own", [True, False])
def test_what_is_said_of_other_databases(own):
    """The variables of Postgres' libraries count for a database that is given, not for ours."""
    said = {"PGSSLMODE": "require", "PGOPTIONS": "-c x=1", "HOME": "/h", "DATABASE_URL": "other"}
    environ = environment.with_database(said, "postgresql://h/d", own=own)

    assert environ.pop("DATABASE_URL") == "postgresql://h/d"
    assert set(environ) == ({"HOME"} if own else {"HOME", "PGSSLMODE", "PGOPTIONS"})


def test_command_finds_the_stack():
    """A command gets what an OpenAI client reads, our programs first, and the data folder."""
    environ = command({"PATH": "/usr/bin"})

    assert environ["OPENAI_BASE_URL"] == "http://127.0.0.1:8000/v1"
    assert environ["OPENAI_API_KEY"] == "fr_key"
    assert environ["OPENAI_MODEL"] == "tiny"
    assert environ["FASTRUN_DATA"] == "/data"
    assert environ["PATH"] == "/venv/bin:/usr/bin"


def test_command_reaches_no_other_stack():
    """What leads commands elsewhere outside does not lead those of --exec there."""
    elsewhere = {
        "FASTRUN_CONTEXT": "production",
        "FASTRUN_CLI_AUTH_ADDRESS": "production:7001",
        "FASTRUN_CLI_SCHEDULER_ADDRESS": "production:7002",
    }

    assert not elsewhere.keys() & command({**elsewhere, "HOME": "/h"}).keys()


def test_command_goes_past_proxies():
    """This machine is added to those that no proxy is asked for, once."""
    environ = command({"NO_PROXY": "example.org,localhost"})

    assert environ["NO_PROXY"] == "example.org,localhost,127.0.0.1"
    assert environ["no_proxy"] == "127.0.0.1,localhost"


@pytest.mark.parametrize("place", ["variable", "file of a variable", "settings file"])
def test_database_elsewhere(tmp_path, place):
    """A database that is set in any of the places where settings are takes our own's place."""
    path = tmp_path / "set"
    path.write_text("postgresql://db" if place != "settings file" else AUTH_TABLE)
    environ = {
        "variable": {"DATABASE_URL": "postgresql://db"},
        "file of a variable": {"DATABASE_URL_FILE": str(path)},
        "settings file": {"FASTRUN_CONFIG": str(path)},
    }[place]
    assert environment.database_url(environ) == "postgresql://db"
    assert environment.database_url({}) is None
