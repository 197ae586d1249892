import pytest
from typer.testing import CliRunner

from fastrun.cli import account
from fastrun.cli.app import make_app
from fastrun.v1 import admin_pb2
from fastrun.v1.auth_pb2 import AccountState

CLOSED = admin_pb2.CloseAccountResponse(
    account=admin_pb2.Account(
        account_id="acct_1", name="ada", state=AccountState.ACCOUNT_STATE_CLOSED
    )
)


@pytest.fixture
def close(monkeypatch):
    """Close an account; returns the result and how often that was sent."""

    def close(*arguments, said=None):
        sent = []
        monkeypatch.setattr(account, "ask", lambda *_: sent.append(1) or CLOSED)
        command = ["account", "close", "ada", "--auth", "127.0.0.1:1", *arguments]
        return CliRunner().invoke(make_app("account"), command, input=said), len(sent)

    return close


@pytest.mark.parametrize("said", ["n\n", "\n", ""])
def test_close_asks(close, said):
    """An account is not ended for good before somebody has said yes."""
    result, sent = close(said=said)

    assert (result.exit_code, sent) == (1, 0)
    assert "End ada and all its keys for good?" in result.stderr


@pytest.mark.parametrize(("arguments", "said"), [((), "y\n"), (("--yes",), None)])
def test_close(close, arguments, said):
    """Said on the terminal or on the command line, it is done."""
    result, sent = close(*arguments, said=said)

    assert (result.exit_code, sent) == (0, 1)
    assert result.stdout.endswith("account ada (acct_1) is closed\n")
