"""Certificates from files, and the settings that name them."""

from datetime import UTC, datetime

import pytest
from structlog.testing import capture_logs

from auth_service.config import Config as Auth
from edge.config import Config as Edge
from fastrun.local.certificates import provide
from fastrun.service import config
from fastrun.service.config import ConfigError
from fastrun.service.identity import Identity, Role
from fastrun.service.tls import Tls, TlsError, is_loopback
from gpu_worker.config import Config as Worker
from scheduler.config import Config as Scheduler

NAMES = ("tls_cert", "tls_key", "tls_ca")
FILES = dict.fromkeys(NAMES, "/x.pem")
AUTH = {"database_url": "postgresql://", "pepper": "ab" * 32}
BEYOND = [
    (Auth, {**AUTH, "listen": "0.0.0.0:7001"}),
    (Edge, {"auth_address": "auth:7001"}),
    (Edge, {"scheduler_addresses": ["127.0.0.1:1", "scheduler:7002"]}),
    (Scheduler, {"listen": "[::]:7002"}),
    (Worker, {"listen": "10.0.0.1:7003"}),
    (Worker, {"advertise_address": "worker:7003"}),
    (Worker, {"scheduler_addresses": ["scheduler:7002"]}),
]


@pytest.fixture
def folder(tmp_path):
    [made] = provide(tmp_path, [Identity(Role.EDGE, "default")], datetime.now(UTC))
    return made.folder


@pytest.mark.parametrize(("kind", "fields"), BEYOND)
def test_plaintext_beyond_this_machine_has_to_be_chosen(kind, fields):
    """A service that others could reach needs certificates, or the word that it does without."""
    with pytest.raises(ValueError, match="is not on this machine: set tls_cert, tls_key, tls_ca"):
        kind(**fields)
    kind(**fields, plaintext=True)
    kind(**fields, **FILES)


@pytest.mark.parametrize("kind", [Edge, Scheduler, Worker])
def test_this_machine_needs_no_certificates(kind):
    """The defaults stay on this machine, in plaintext."""
    assert Tls.of(kind()) is None


@pytest.mark.parametrize("given", [NAMES[:1], NAMES[1:], NAMES[:2]])
def test_certificates_come_whole(given):
    """One of the three files is of no use without the others."""
    with pytest.raises(ValueError, match="set all three or none"):
        Edge(**dict.fromkeys(given, "/x.pem"))


def test_certificates_and_plaintext_exclude_each_other():
    """Who asks for both is asked what is meant."""
    with pytest.raises(ValueError, match="exclude each other"):
        Edge(**FILES, plaintext=True)


def test_settings_that_do_not_fit_are_a_problem_like_others():
    """The environment is read, and the sentence reaches whoever starts the service."""
    with pytest.raises(ConfigError, match=r"0\.0\.0\.0:1 is not on this machine"):
        config.load(Scheduler, "scheduler", {"FASTRUN_SCHEDULER_LISTEN": "0.0.0.0:1"})


@pytest.mark.parametrize(
    ("address", "is_here"),
    [
        ("127.0.0.1:1", True),
        ("127.9.9.9:1", True),
        ("[::1]:1", True),
        ("localhost:1", True),
        ("0.0.0.0:1", False),
        ("[::]:1", False),
        ("192.168.0.1:1", False),
        ("localhost.example.org:1", False),
        ("127.0.0.1.example.org:1", False),
        (":1", False),
        ("", False),
    ],
)
def test_what_is_on_this_machine(address, is_here):
    """Only what can be nowhere else counts as here."""
    assert is_loopback(address) is is_here


def test_files_that_are_not_there(tmp_path):
    """A missing file is named."""
    with pytest.raises(TlsError, match=rf"cannot read {tmp_path}/cert\.pem: No such file"):
        Tls.of_folder(tmp_path)


def test_files_that_do_not_belong_together(folder, tmp_path):
    """A key of another certificate, and a CA that is none, are refused at the start."""
    [other] = provide(tmp_path, [Identity(Role.AUTH, "default")], datetime.now(UTC))
    with pytest.raises(TlsError, match="are no certificate and its key"):
        Tls(folder / "cert.pem", other.folder / "key.pem", folder / "ca.pem")
    with pytest.raises(TlsError, match=r"key\.pem is no certificate"):
        Tls(folder / "cert.pem", folder / "key.pem", folder / "key.pem")


def test_files_are_read_again_when_they_have_changed(folder, tmp_path):
    """What is current stays the same object until it has changed on disk."""
    tls = Tls.of_folder(folder)
    before = tls.current()
    assert tls.current() is before
    provide(tmp_path, [Identity(Role.EDGE, "default")], datetime.now(UTC), renew=True)
    after = tls.current()
    assert after.cert == (folder / "cert.pem").read_bytes() != before.cert
    assert tls.current() is after


def test_half_of_a_change_changes_nothing(folder, tmp_path):
    """While only the key is new, or a file is gone, the last good pair stays in use."""
    tls = Tls.of_folder(folder)
    before = tls.current()
    [other] = provide(tmp_path / "b", [Identity(Role.EDGE, "default")], datetime.now(UTC))
    with capture_logs() as logs:
        (other.folder / "key.pem").replace(folder / "key.pem")
        assert tls.current() is before
        assert tls.current() is before
        (folder / "cert.pem").unlink()
        assert tls.current() is before
        for name in ("cert.pem", "ca.pem"):
            (other.folder / name).replace(folder / name)
        assert tls.current() is not before
    assert [each["event"] for each in logs] == [
        "certificates_not_reloaded",
        "certificates_not_reloaded",
        "certificates_reloaded",
    ]
