"""Who may join as a worker, and who may stay one."""

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding

from auth_service.enrolment import (
    Holder,
    Token,
    again_in_s,
    applicant,
    check_join,
    check_renewal,
    has_time_left,
    public_key_sha256,
)
from auth_service.errors import AlreadyExistsError, InvalidFieldError, NotFoundError, StateError

KEY, OTHER = b"k" * 32, b"o" * 32
NEW = Token(worker_id="", expired=False)
NOW = datetime(2026, 11, 29, tzinfo=UTC)


def csr(key, algorithm=None):
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    return builder.sign(key, algorithm).public_bytes(Encoding.PEM).decode()


def test_a_new_token_opens_a_free_name():
    """A token that nobody has used, and a name that nobody has or had."""
    check_join(NEW, None, "gpu-1", KEY)
    check_join(NEW, Holder(OTHER, valid=False), "gpu-1", KEY)
    check_join(NEW, Holder(KEY, valid=True), "gpu-1", KEY)


@pytest.mark.parametrize(
    ("token", "error", "cure"),
    [
        (None, NotFoundError, "fastrun worker token"),
        (Token("", expired=True), StateError, "has expired.*fastrun worker token"),
        (Token("", False, "gpu-9", OTHER), StateError, "gpu-9 has joined by.*good once"),
        (Token("", False, "gpu-1", OTHER), StateError, "good once"),
        (Token("", False, "gpu-9", KEY), StateError, "good once"),
        (Token("", True, "gpu-1", KEY), StateError, "has expired"),
        (Token("gpu-2", False), StateError, "is for worker gpu-2.*--name gpu-2"),
    ],
)
def test_a_token_that_opens_nothing(token, error, cure):
    """Each reason is an error of its own, whose message says what to do."""
    with pytest.raises(error, match=cure):
        check_join(token, None, "gpu-1", KEY)


def test_a_lost_answer_can_be_asked_for_again():
    """The same machine, by its key, may use its token twice under the same name."""
    check_join(Token("", False, "gpu-1", KEY), Holder(KEY, valid=True), "gpu-1", KEY)


def test_a_name_is_taken_from_its_holder_only_by_a_token_for_it():
    """A valid certificate keeps others off its name, unless an operator has named the worker."""
    holder = Holder(OTHER, valid=True)

    with pytest.raises(AlreadyExistsError, match="fastrun worker token --worker gpu-1"):
        check_join(NEW, holder, "gpu-1", KEY)
    check_join(Token("gpu-1", expired=False), holder, "gpu-1", KEY)


def test_a_used_token_takes_no_name_back():
    """A machine that was replaced does not replace the other by the token of its own join."""
    used = Token("gpu-1", False, "gpu-1", KEY)

    check_join(used, Holder(OTHER, valid=False), "gpu-1", KEY)
    with pytest.raises(StateError, match="another machine has joined as worker gpu-1 since"):
        check_join(used, Holder(OTHER, valid=True), "gpu-1", KEY)


def test_only_the_last_of_a_name_is_renewed():
    """A machine that was replaced, and one that never joined, are not."""
    check_renewal(Holder(KEY, valid=True), "gpu-1", KEY)
    check_renewal(Holder(KEY, valid=False), "gpu-1", KEY)
    with pytest.raises(NotFoundError, match="another machine"):
        check_renewal(Holder(OTHER, valid=True), "gpu-1", KEY)
    with pytest.raises(NotFoundError, match="did not join"):
        check_renewal(None, "gpu-1", KEY)


def test_a_request_says_whose_key_it_is():
    """The key of a request is read, and its names are ignored."""
    key = ec.generate_private_key(ec.SECP256R1())

    asking = applicant("gpu-1", csr(key, hashes.SHA256()))

    assert str(asking.worker) == "worker/gpu-1"
    assert asking.key_sha256 == public_key_sha256(key.public_key())


def broken():
    """A request that somebody has changed after it was signed."""
    key, other = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    mine = x509.load_pem_x509_csr(csr(key, hashes.SHA256()).encode())
    theirs = x509.load_pem_x509_csr(csr(other, hashes.SHA256()).encode())
    body = mine.tbs_certrequest_bytes
    der = mine.public_bytes(Encoding.DER).replace(body, theirs.tbs_certrequest_bytes)
    try:
        return x509.load_der_x509_csr(der).public_bytes(Encoding.PEM).decode()
    except ValueError:
        return "damaged"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nothing of the kind",
        csr(ec.generate_private_key(ec.SECP384R1()), hashes.SHA256()),
        csr(ed25519.Ed25519PrivateKey.generate()),
        broken(),
    ],
)
def test_a_request_that_is_none(text):
    """What is not signed by a P-256 key is refused."""
    with pytest.raises(InvalidFieldError, match="csr_pem"):
        applicant("gpu-1", text)


@pytest.mark.parametrize("name", ["", "a/b", "-a", "a b", "a" * 64])
def test_a_name_that_is_none(name):
    """A name that no certificate can have is refused."""
    with pytest.raises(InvalidFieldError, match="no name"):
        applicant(name, csr(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256()))


def test_half_of_its_time_is_a_certificates_spare():
    """It is renewed from the middle of its life on, so that outages of days do no harm."""
    month = timedelta(days=30)

    assert has_time_left(NOW + timedelta(days=16), NOW, month)
    assert not has_time_left(NOW + timedelta(days=15), NOW, month)


@pytest.mark.parametrize(
    ("left", "again"),
    [
        (timedelta(days=30), 24 * 3600),
        (timedelta(hours=4), 3600),
        (timedelta(seconds=1), 1),
        (timedelta(seconds=-5), 1),
    ],
)
def test_when_a_worker_asks_again(left, again):
    """Once a day, and more often the nearer the end is."""
    assert again_in_s(NOW + left, NOW) == again
