"""The deployments that a user operates."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from fastrun.cli.contexts import Context, Contexts, default_folder, parse, render
from fastrun.cli.errors import CommandError

CONTEXT = Context(
    auth="auth.example.org:7001",
    scheduler="[2001:db8::1]:7002",
    operator="alice",
    expires=datetime(2027, 11, 29, 12, tzinfo=UTC),
    cert="-----BEGIN CERTIFICATE-----\nA\n-----END CERTIFICATE-----\n",
    key="-----BEGIN PRIVATE KEY-----\nB\n-----END PRIVATE KEY-----\n",
    ca="-----BEGIN CERTIFICATE-----\nC\n-----END CERTIFICATE-----\n",
)
TEXT = render(CONTEXT)


@pytest.fixture
def contexts(tmp_path):
    return Contexts(tmp_path / "fastrun")


def test_text_and_back():
    """What is written is read as it was."""
    assert parse(TEXT, "it") == CONTEXT


def test_life_of_a_context(contexts):
    """A context is added, used, replaced and removed; without one commands stay here."""
    assert (contexts.names(), contexts.current()) == ([], "local")

    contexts.add("lab", TEXT)
    contexts.use("lab")
    assert (contexts.names(), contexts.current()) == (["lab"], "lab")
    assert contexts.read("lab") == CONTEXT

    with pytest.raises(CommandError, match="there is a context lab: add it with --replace"):
        contexts.add("lab", TEXT)
    contexts.add("lab", TEXT.replace("alice", "bob"), replace=True)
    assert contexts.read("lab").operator == "bob"

    contexts.use("local")
    assert contexts.current() == "local"
    contexts.use("lab")
    contexts.remove("lab")
    assert (contexts.names(), contexts.current()) == ([], "local")


def test_what_is_kept_is_private(contexts, tmp_path):
    """A context holds a key: only its owner reads it."""
    contexts.add("lab", TEXT)
    path = tmp_path / "fastrun" / "contexts" / "lab.toml"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_a_file_anywhere(contexts, tmp_path):
    """A path is a context, too, without being added."""
    path = tmp_path / "elsewhere.toml"
    path.write_text(TEXT)
    assert contexts.read(str(path)) == CONTEXT


def test_a_name_that_nobody_has(contexts):
    """Who asks for an unknown name is told which there are."""
    contexts.add("lab", TEXT)
    for call in (contexts.read, contexts.use, contexts.remove):
        with pytest.raises(CommandError, match="there is no context 'lap': use one of local, lab"):
            call("lap")


@pytest.mark.parametrize("name", ["", "local", "a/b", "../x", ".hidden", "x.toml", "a b"])
def test_a_name_that_cannot_be(contexts, name):
    """A name is a plain word, and none that means something else."""
    with pytest.raises(CommandError, match="cannot be a context's name"):
        contexts.add(name, TEXT)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("not toml", "cannot be used"),
        ('auth = "a:1"', "scheduler"),
        ('auth = "a:1"\nscheduler = "b:2"', "it needs cert, key and ca, or plaintext = true"),
        ('auth = "a:1"\nscheduler = "b:2"\ncert = "c"', "it needs cert, key and ca"),
        (TEXT + "plaintext = true\n", "it needs cert, key and ca, or plaintext = true"),
        (TEXT.replace("7001", ""), "auth"),
        (TEXT + "port = 1\n", "port"),
    ],
)
def test_what_is_no_context(contexts, text, words):
    """What is missing or wrong is said before anything is kept."""
    with pytest.raises(CommandError, match=words):
        contexts.add("lab", text)
    assert contexts.names() == []


def test_a_deployment_in_plaintext():
    """A deployment without certificates says so."""
    context = parse('auth = "a:1"\nscheduler = "b:2"\nplaintext = true', "it")
    assert context.tls is None


def test_where_contexts_are():
    """They are where other programs of the user keep their settings."""
    assert default_folder({"XDG_CONFIG_HOME": "/c"}) == Path("/c/fastrun")
    assert default_folder({"XDG_CONFIG_HOME": "c"}) == Path.home() / ".config" / "fastrun"
