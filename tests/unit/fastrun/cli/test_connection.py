"""Which service a command talks to, and with whose certificate."""

import pytest

from fastrun.cli.connection import auth_service, scheduler_service
from fastrun.cli.contexts import Contexts
from fastrun.cli.errors import CommandError
from fastrun.service.identity import Role

TEXT = 'auth = "{name}:7001"\nscheduler = "{name}:7002"\nplaintext = true\n'


@pytest.fixture(autouse=True)
def contexts(tmp_path, monkeypatch):
    """Two contexts of a user for whom nothing runs here."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr("fastrun.cli.data.default_path", lambda _environ: tmp_path / "data")
    for name in ("FASTRUN_CONTEXT", "FASTRUN_DATA"):
        monkeypatch.delenv(name, raising=False)
    contexts = Contexts(tmp_path / "config" / "fastrun")
    for name in ("lab", "prod"):
        contexts.add(name, TEXT.format(name=name))
    return contexts


def address(**arguments):
    return auth_service(
        arguments.get("given"), arguments.get("data"), arguments.get("context")
    ).address


def test_nothing_is_said():
    """Without a word it is this machine, at the usual ports, in plaintext."""
    auth, scheduler = auth_service(None, None, None), scheduler_service(None, None, None)
    assert (auth.address, auth.role, auth.tls) == ("127.0.0.1:7001", Role.AUTH, None)
    assert (scheduler.address, scheduler.role) == ("127.0.0.1:7002", Role.SCHEDULER)


def test_the_nearest_word_counts(contexts, monkeypatch, tmp_path):
    """An option beats a variable, which beats what was chosen for good."""
    contexts.use("lab")
    assert address() == "lab:7001"
    monkeypatch.setenv("FASTRUN_CONTEXT", "prod")
    assert address() == "prod:7001"
    assert address(context="lab") == "lab:7001"
    assert address(context="local") == "127.0.0.1:7001"
    with pytest.raises(CommandError, match="nothing runs in"):
        address(data=tmp_path / "data")
    assert address(context="lab", given="other:1") == "other:1"


def test_a_command_of_exec_stays_with_its_stack(contexts, monkeypatch, tmp_path):
    """Inside `fastrun up --exec` what was chosen for good does not lead elsewhere."""
    contexts.use("prod")
    monkeypatch.setenv("FASTRUN_DATA", str(tmp_path / "data"))
    assert address() == "127.0.0.1:7001"


def test_two_words_that_contradict(tmp_path):
    """A stack that runs here and a deployment elsewhere cannot both be meant."""
    with pytest.raises(CommandError, match="leave out one"):
        address(data=tmp_path, context="lab")


def test_a_folder_in_which_nothing_runs(tmp_path):
    """Who names a stack's folder is told that nothing runs there, and meets no other service."""
    with pytest.raises(CommandError, match=rf"nothing runs in {tmp_path}: start it with fastrun"):
        address(data=tmp_path)


def test_plaintext_stays_on_this_machine():
    """An address elsewhere needs a context, which says how to be safe there."""
    assert address(given="127.0.0.1:9") == "127.0.0.1:9"
    with pytest.raises(CommandError, match="lab:7001 is not on this machine: say with --context"):
        address(given="lab:7001")
