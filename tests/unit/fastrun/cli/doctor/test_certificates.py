from datetime import UTC, datetime, timedelta

import pytest

from fastrun.cli.doctor.certificates import check, of_files
from fastrun.cli.doctor.finding import State
from fastrun.service.authority import Authority
from fastrun.service.identity import Identity, Role
from fastrun.service.tls import Pem

NOW = datetime(2026, 11, 30, tzinfo=UTC)
CA = Authority.new(NOW)
OTHER_CA = Authority.new(NOW)


def pem(*, role=Role.EDGE, ca=CA, trusted=CA, days=100.0):
    issued = ca.issue(Identity(role, "one"), NOW, days)
    return Pem(issued.cert, issued.key, trusted.trusted)


def look(pem, *, after_days=0.0):
    now = NOW + timedelta(days=after_days)
    return check("the edge", Role.EDGE, pem, cure="make another one", now=now)


@pytest.mark.parametrize(("after_days", "state"), [(0, State.OK), (95, State.WARNING)])
def test_good(after_days, state):
    """A certificate is good until it has a tenth of its life left, which is told."""
    found = look(pem(), after_days=after_days)

    assert found.state is state
    assert "2027-03-10" in found.says


@pytest.mark.parametrize(
    ("given", "after_days", "says"),
    [
        (pem(), 101, "has expired on 2027-03-10 00:00 UTC"),
        (pem(), -1, "begins on 2026-11-29 23:00 UTC, or the clock is wrong"),
        (pem(role=Role.WORKER), 0, "is that of worker/one, and not of edge/NAME"),
        (pem(ca=OTHER_CA), 0, "is not of the CA that is trusted beside it"),
        (Pem(pem().cert, pem().key, CA.trusted), 0, "is not that of its key"),
        (Pem(b"", b"", b""), 0, "the certificate, key or CA of the edge is damaged"),
    ],
    ids=["expired", "not yet", "role", "ca", "key", "damaged"],
)
def test_wrong(given, after_days, says):
    """What is wrong with a certificate is told, with the cure."""
    found = look(given, after_days=after_days)

    assert found.state is State.WRONG
    assert says in found.says
    assert found.says.endswith(": make another one")


def test_missing(tmp_path):
    """A file that is not there is named."""
    files = (tmp_path / "cert.pem",) * 3
    found = of_files("the edge", Role.EDGE, files, cure="make it", now=NOW)

    assert found.state is State.WRONG
    assert f"cannot read {tmp_path}/cert.pem (No such file or directory)" in found.says
