"""`fastrun certs` and `fastrun operator`: what they make, say and refuse."""

import json
from datetime import UTC, datetime

import pytest
from cryptography import x509
from typer.testing import CliRunner

from fastrun.cli import certs, operator
from fastrun.cli.contexts import parse
from fastrun.cli.errors import CommandError
from fastrun.local.errors import LocalError
from fastrun.service.authority import identity_of

ADDRESSES = ("--auth", "a.example.org:7001", "--scheduler", "s.example.org:7002")


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run a command in a folder of its own; return what it prints, or raise what it raises."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fastrun.cli.data.default_path", lambda _environ: tmp_path / "data")

    def run(app, *arguments):
        result = CliRunner().invoke(app, arguments)
        if isinstance(result.exception, (CommandError, LocalError)):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.stdout

    return run


def states(run, *arguments):
    made = json.loads(run(certs.app, "certs", *arguments, "--json"))
    return {each["identity"]: each["state"] for each in made}


def test_one_of_each_role(run):
    """The first run makes all, and the second one shows that all is good."""
    roles = ("auth", "edge", "operator", "scheduler", "worker")
    assert states(run) == {f"{role}/default": "new" for role in roles}
    assert states(run) == {f"{role}/default": "kept" for role in roles}
    ends = f"{datetime.now(UTC).year + 1}-"
    lines = run(certs.app, "certs").splitlines()
    assert lines[1].startswith(f"auth/default       {ends}")
    assert lines[1].endswith("kept  certs/auth")


def test_further_identities(run):
    """More of a role are made by name, and from then on renewed with the others."""
    assert states(run, "worker/gpu-1", "edge") == {"worker/gpu-1": "new", "edge/default": "new"}
    assert states(run)["worker/gpu-1"] == "kept"
    assert set(states(run, "--renew").values()) == {"new"}


def test_days(run):
    """New certificates live as long as was asked."""
    [made] = json.loads(run(certs.app, "certs", "edge", "--days", "30", "--json"))
    left = datetime.fromisoformat(made["expires_at"]) - datetime.now(UTC)
    assert round(left.total_seconds() / 86_400) == 30


def test_contexts_for_operators(run, tmp_path):
    """With addresses, operators find a context beside their certificate; nobody else does."""
    run(certs.app, "certs", "operator", "operator/bob", "edge", *ADDRESSES)

    context = parse((tmp_path / "certs/operator-bob/context.toml").read_text(), "it")
    assert (context.auth, context.operator) == ("a.example.org:7001", "bob")
    assert context.key == (tmp_path / "certs/operator-bob/key.pem").read_text()
    assert (tmp_path / "certs/operator/context.toml").stat().st_mode & 0o777 == 0o600
    assert not (tmp_path / "certs/edge/context.toml").exists()


def test_a_context_is_renewed_with_its_certificate(run, tmp_path):
    """It keeps its addresses and has the new certificate, also where none are given again."""
    run(certs.app, "certs", *ADDRESSES)
    folder = tmp_path / "certs/operator"
    before = parse((folder / "context.toml").read_text(), "it")

    run(certs.app, "certs", "--renew")

    after = parse((folder / "context.toml").read_text(), "it")
    assert after.cert == (folder / "cert.pem").read_text() != before.cert
    assert (after.auth, after.scheduler) == (before.auth, before.scheduler)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("certs", "root"), "'root' is no role: use one of edge, auth, scheduler, worker"),
        (("certs", "worker/a b"), "'a b' is no name"),
        (("certs", "--auth", "a:1"), "give --auth and --scheduler"),
    ],
)
def test_what_cannot_be_made(run, tmp_path, arguments, words):
    """A wrong word makes nothing."""
    with pytest.raises(CommandError, match=words):
        run(certs.app, *arguments)
    assert not (tmp_path / "certs").exists()


def test_an_operator(run, tmp_path):
    """A person gets all in one file, of which nothing is kept."""
    run(certs.app, "certs")
    before = sorted(tmp_path.rglob("*"))

    said = run(operator.app, "alice", "--certs", "certs", *ADDRESSES, "--days", "30")

    assert sorted(tmp_path.rglob("*")) == sorted([*before, tmp_path / "alice.toml"])
    assert (tmp_path / "alice.toml").stat().st_mode & 0o777 == 0o600
    context = parse((tmp_path / "alice.toml").read_text(), "it")
    cert = x509.load_pem_x509_certificate(context.cert.encode())
    assert str(identity_of(cert)) == "operator/alice"
    assert context.expires == cert.not_valid_after_utc
    assert context.ca == (tmp_path / "certs/ca/ca.pem").read_text()
    assert f"operator/alice until {context.expires:%Y-%m-%d}" in said
    assert "fastrun context add NAME alice.toml" in said


def test_an_operator_on_stdout(run, tmp_path):
    """For a pipe the context alone is printed."""
    run(certs.app, "certs")
    text = run(operator.app, "alice", "--certs", "certs", *ADDRESSES, "-o", "-")
    assert parse(text, "it").operator == "alice"
    assert not (tmp_path / "alice.toml").exists()


def test_what_makes_no_operator(run, tmp_path):
    """A missing CA or address, a bad name and a file in the way are said."""
    arguments = ("--certs", "certs", *ADDRESSES)
    with pytest.raises(LocalError, match=r"cannot read certs/ca/key\.pem: No such file"):
        run(operator.app, "alice", *arguments)
    run(certs.app, "certs")
    with pytest.raises(CommandError, match="say where the services are"):
        run(operator.app, "alice", "--certs", "certs")
    with pytest.raises(CommandError, match="'a/b' is no name"):
        run(operator.app, "a/b", *arguments)
    (tmp_path / "alice.toml").write_text("mine")
    with pytest.raises(CommandError, match=r"alice\.toml exists: choose another file"):
        run(operator.app, "alice", *arguments)
    assert (tmp_path / "alice.toml").read_text() == "mine"
