"""What `fastrun certs` makes, and when it makes it anew."""

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from fastrun.local.certificates import EVERYONE, identities_in, provide
from fastrun.local.errors import LocalError
from fastrun.service.authority import CA_DAYS, Authority, identity_of
from fastrun.service.identity import Identity, Role

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
DAY = timedelta(days=1)
EDGE = Identity(Role.EDGE, "default")
ALICE = Identity(Role.OPERATOR, "alice")


def certificate(folder, name="cert.pem"):
    return x509.load_pem_x509_certificate((folder / name).read_bytes())


def test_a_folder_for_each_identity(tmp_path):
    """Everyone finds certificate, key and CA in a folder of their own; keys are private."""
    made = provide(tmp_path / "certs", [*EVERYONE, ALICE], NOW)

    names = {path.name for path in (tmp_path / "certs").iterdir()}
    assert names == {"ca", "edge", "auth", "scheduler", "worker", "operator", "operator-alice"}
    for each in made:
        assert (each.is_new, each.expires_at) == (True, NOW + 365 * DAY)
        assert {path.name for path in each.folder.iterdir()} == {"cert.pem", "key.pem", "ca.pem"}
        assert each.folder.stat().st_mode & 0o777 == 0o700
        assert (each.folder / "key.pem").stat().st_mode & 0o777 == 0o600
        assert identity_of(certificate(each.folder)) == each.identity
    assert (tmp_path / "certs" / "ca" / "key.pem").stat().st_mode & 0o777 == 0o600
    assert set(identities_in(tmp_path / "certs")) == {*EVERYONE, ALICE}


def test_what_a_certificate_is_good_for(tmp_path):
    """Services serve and call under their role's name; an operator only calls."""
    edge, alice = (certificate(each.folder) for each in provide(tmp_path, [EDGE, ALICE], NOW))
    ca = certificate(tmp_path / "ca", "ca.pem")

    def names(cert):
        return cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value

    def usages(cert):
        return set(cert.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)

    assert names(edge).get_values_for_type(x509.UniformResourceIdentifier) == [
        "fastrun:edge/default"
    ]
    assert names(edge).get_values_for_type(x509.DNSName) == ["edge.fastrun"]
    assert usages(edge) == {ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH}
    assert names(alice).get_values_for_type(x509.DNSName) == []
    assert usages(alice) == {ExtendedKeyUsageOID.CLIENT_AUTH}
    for cert in (edge, alice, ca):
        assert isinstance(cert.public_key().curve, ec.SECP256R1)
        authority = cert.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        assert authority == (cert is ca)
    assert ca.not_valid_after_utc == NOW + CA_DAYS * DAY
    edge.verify_directly_issued_by(ca)


def test_a_second_run_changes_nothing(tmp_path):
    """What is good is kept, byte for byte."""
    provide(tmp_path, EVERYONE, NOW)
    before = {path: path.read_bytes() for path in tmp_path.glob("*/*")}

    made = provide(tmp_path, EVERYONE, NOW + 200 * DAY)

    assert not any(each.is_new for each in made)
    assert {path: path.read_bytes() for path in tmp_path.glob("*/*")} == before


def test_what_ends_soon_is_made_anew(tmp_path):
    """With less than a third of its time left a certificate is replaced, and the CA is not."""
    provide(tmp_path, [EDGE], NOW, days=90)
    ca = (tmp_path / "ca" / "ca.pem").read_bytes()

    assert not provide(tmp_path, [EDGE], NOW + 59 * DAY)[0].is_new
    [renewed] = provide(tmp_path, [EDGE], NOW + 61 * DAY, days=30)

    assert (renewed.is_new, renewed.expires_at) == (True, NOW + 91 * DAY)
    assert (tmp_path / "ca" / "ca.pem").read_bytes() == ca


def test_renewing_on_demand(tmp_path):
    """Only those that are named are made anew."""
    provide(tmp_path, [EDGE, ALICE], NOW)
    alice = (tmp_path / "operator-alice" / "cert.pem").read_bytes()

    assert provide(tmp_path, [EDGE], NOW, renew=True)[0].is_new
    assert (tmp_path / "operator-alice" / "cert.pem").read_bytes() == alice


@pytest.mark.parametrize("name", ["cert.pem", "key.pem", "ca.pem"])
@pytest.mark.parametrize("harm", ["lose", "break", "exchange"])
def test_what_is_damaged_is_made_anew(tmp_path, name, harm):
    """A start that broke off between two files, or a file of another's, is mended."""
    [made] = provide(tmp_path / "a", [EDGE], NOW)
    [other] = provide(tmp_path / "b", [EDGE], NOW)
    path = made.folder / name
    if harm == "lose":
        path.unlink()
    elif harm == "break":
        path.write_bytes(path.read_bytes()[:60])
    else:
        path.write_bytes((other.folder / name).read_bytes())

    [mended] = provide(tmp_path / "a", [EDGE], NOW)

    assert mended.is_new
    assert not provide(tmp_path / "a", [EDGE], NOW)[0].is_new


def test_a_start_that_broke_off_before_there_was_a_ca(tmp_path):
    """A CA whose certificate was not written yet has issued nothing: it is made anew."""
    provide(tmp_path, [], NOW)
    (tmp_path / "ca" / "ca.pem").unlink()

    assert provide(tmp_path, [EDGE], NOW)[0].is_new


def test_a_ca_that_cannot_be_used_is_not_replaced(tmp_path):
    """A CA that others trust is never made anew in silence."""
    provide(tmp_path, [EDGE], NOW)
    key = tmp_path / "ca" / "key.pem"
    for harm, words in (
        (lambda: key.write_bytes(b"nonsense"), "holds no CA that can be used"),
        (lambda: key.write_bytes(Authority.new(NOW).key_pem), "the key is not that of"),
        (lambda: key.write_bytes(with_password()), "its key has a password"),
        (key.unlink, r"cannot read .*key\.pem: No such file"),
    ):
        harm()
        with pytest.raises(LocalError, match=words):
            provide(tmp_path, [EDGE], NOW)


def with_password():
    return ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )


def test_a_ca_has_an_end(tmp_path):
    """No certificate outlives its CA, and a CA that has ended says what to do."""
    provide(tmp_path, [], NOW)
    late = NOW + (CA_DAYS - 10) * DAY

    assert provide(tmp_path, [EDGE], late)[0].expires_at == late + 10 * DAY
    with pytest.raises(LocalError, match="has ended: remove it to have a new one made"):
        provide(tmp_path, [EDGE], late + 11 * DAY)


def test_a_change_of_the_ca(tmp_path):
    """Old and new CA are trusted together while everybody gets certificates of the new one."""
    [old] = provide(tmp_path / "old", [EDGE], NOW)
    before = certificate(old.folder)
    provide(tmp_path / "new", [], NOW)
    trusted = tmp_path / "old" / "ca" / "ca.pem"
    new = (tmp_path / "new" / "ca" / "ca.pem").read_bytes()
    trusted.write_bytes(trusted.read_bytes() + new)

    provide(tmp_path / "old", [EDGE], NOW)
    assert (old.folder / "ca.pem").read_bytes() == trusted.read_bytes()
    assert certificate(old.folder).issuer == before.issuer

    trusted.write_bytes(new + trusted.read_bytes().removesuffix(new))
    key = (tmp_path / "new" / "ca" / "key.pem").read_bytes()
    (tmp_path / "old" / "ca" / "key.pem").write_bytes(key)
    provide(tmp_path / "old", [EDGE], NOW)
    assert certificate(old.folder).issuer == certificate(tmp_path / "new" / "ca", "ca.pem").issuer
    assert (old.folder / "ca.pem").read_bytes() == trusted.read_bytes()


def test_a_folder_that_cannot_be_written(tmp_path):
    """The path that is in the way is named."""
    (tmp_path / "certs").write_text("a file")
    with pytest.raises(LocalError, match=r"cannot keep certificates in .*/certs: "):
        provide(tmp_path / "certs", [EDGE], NOW)
