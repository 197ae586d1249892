"""Who may call what."""

import pytest

from fastrun.service.identity import (
    CALLS,
    WITHOUT_CERTIFICATE,
    Identity,
    Role,
    actor,
    of_uris,
    refusal,
    refusal_without_certificate,
)
from fastrun.v1 import admin_pb2, auth_pb2, scheduler_pb2, worker_pb2

PROTOS = (admin_pb2, auth_pb2, scheduler_pb2, worker_pb2)
EDGE = Identity(Role.EDGE, "e1")


def test_every_call_of_the_protos_is_in_the_table():
    """A call that is added to a proto has to be given to somebody, and one that is gone taken."""
    declared = {
        service.full_name: {method.name for method in service.methods}
        for proto in PROTOS
        for service in proto.DESCRIPTOR.services_by_name.values()
    }
    strangers = {f"/fastrun.v1.EnrolmentService/{name}" for name in _calls_of_strangers(declared)}
    ours = {name: set(calls) for name, calls in CALLS.items() if name.startswith("fastrun.")}
    assert ours == declared
    assert {name for name in WITHOUT_CERTIFICATE if "fastrun" in name} == strangers


def _calls_of_strangers(declared):
    """Take out the one service that is on a port of its own, where nobody has a certificate."""
    return declared.pop("fastrun.v1.EnrolmentService")


def test_what_strangers_may_call():
    """Without a certificate a machine may join and ask for health, and nothing else."""
    assert refusal_without_certificate("/fastrun.v1.EnrolmentService/Enrol") is None
    assert refusal_without_certificate("/grpc.health.v1.Health/Check") is None
    # It would hold one of the few calls that strangers may make at once.
    assert refusal_without_certificate("/grpc.health.v1.Health/Watch") is not None
    assert refusal_without_certificate("/fastrun.v1.AdminService/IssueKey") == (
        "nobody may call AdminService.IssueKey here: this port is for machines that join"
    )
    assert "it is for nobody" in refusal("/fastrun.v1.EnrolmentService/Enrol", EDGE)


@pytest.mark.parametrize("text", ["edge/e1", "operator/alice.b-c_D", f"worker/{'w' * 63}"])
def test_an_identity_is_what_its_text_says(text):
    """Role and name survive the way through a certificate."""
    identity = Identity.parse(text)
    assert str(identity) == text
    assert of_uris(["https://example.org", identity.uri]) == identity


@pytest.mark.parametrize(
    "text", ["", "edge", "edge/", "root/x", "edge/a/b", "edge/a b", "edge/é", f"edge/{'x' * 64}"]
)
def test_what_is_no_identity(text):
    """Anything but one of our roles and a plain name is refused, and opens nothing."""
    with pytest.raises(ValueError, match=r"is no (role|name)"):
        Identity.parse(text)
    assert of_uris([f"fastrun:{text}"]) is None


def test_two_identities_are_none():
    """A certificate that says two things says nothing."""
    assert of_uris(["fastrun:edge/a", "fastrun:operator/b"]) is None
    assert of_uris([]) is None


def test_a_refusal_says_who_and_for_whom():
    """Whoever is refused is told for whom the call is."""
    assert refusal("/fastrun.v1.AuthService/VerifyKey", EDGE) is None
    assert refusal("/fastrun.v1.AdminService/IssueKey", EDGE) == (
        "edge/e1 may not call AdminService.IssueKey: it is for operator"
    )
    assert "edge or operator" in refusal("/fastrun.v1.WorkerService/Generate", None)


def test_what_is_not_in_the_table_is_for_nobody():
    """An unknown call is refused to everyone."""
    for method in ("/fastrun.v1.AuthService/New", "/x.Y/Z", "", "/", "VerifyKey"):
        assert "it is for nobody" in refusal(method, EDGE)


def test_without_tls_the_actor_is_anonymous():
    """Outside a call, or in one over plaintext, nobody can be named."""
    assert actor() == "anonymous"
