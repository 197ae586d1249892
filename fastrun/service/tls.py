"""TLS between services: each shows a certificate of the deployment's CA and asks for one.

Certificates are replaced while services run. A server takes new ones for its next connection, and
so does a client that opens a new channel; connections that are open live on.
"""

import ipaddress
import ssl
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import grpc
import msgspec
import structlog

from fastrun.service.lifecycle import StartError

log = structlog.get_logger()

_FIELDS = ("tls_cert", "tls_key", "tls_ca")
_Stamp = tuple[tuple[int, int, int] | None, ...]


class TlsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that every service has; raises ValueError when they do not fit together."""

    # Certificates, as `fastrun certs` makes them; without them a service reaches this machine only.
    tls_cert: str = ""
    """PEM file of the certificate that says who this service is to the others."""
    tls_key: str = ""
    """PEM file of its key."""
    tls_ca: str = ""
    """PEM file of the CA, or of several, that the others' certificates have to be of."""
    plaintext: bool = False
    """Do without certificates also beyond this machine: whoever reaches the network may do all."""

    def __post_init__(self) -> None:
        problem = _problem(self)
        if problem is not None:
            raise ValueError(problem)

    @property
    def peer_addresses(self) -> Sequence[str]:
        """host:port of all that speaks gRPC here: where it listens and whom it calls."""
        raise NotImplementedError


class TlsError(StartError):
    """The certificates cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class Pem:
    """What the three files hold."""

    cert: bytes
    key: bytes
    ca: bytes

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Credentials for one channel, which keeps them as long as it lives."""
        return grpc.ssl_channel_credentials(self.ca, self.key, self.cert)


class ClientTls(Protocol):
    """What a channel is opened with."""

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Credentials for one channel."""


class Tls:
    """One process' certificate, its key and the CA, read anew whenever their files have changed.

    Raises:
        TlsError: the files cannot be read or do not belong together. Later on the last good ones
            stay in use.
    """

    def __init__(self, cert: Path, key: Path, ca: Path) -> None:
        self._files = (cert, key, ca)
        self._lock = threading.Lock()  # gRPC asks from threads of its own
        self._stamp: _Stamp | None = self._look()
        self._pem = _read(*self._files)

    @classmethod
    def of(cls, settings: TlsSettings) -> "Tls | None":
        """What the settings say; None: plaintext."""
        if not settings.tls_cert:
            return None
        return cls(*(Path(getattr(settings, name)) for name in _FIELDS))

    @classmethod
    def of_folder(cls, folder: Path) -> "Tls":
        """What `fastrun certs` has made for one identity."""
        return cls(folder / "cert.pem", folder / "key.pem", folder / "ca.pem")

    def current(self) -> Pem:
        """What to use for the next connection: the same object until it has changed."""
        with self._lock:
            stamp = self._look()
            if stamp != self._stamp:
                self._reload(stamp)
            return self._pem

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Credentials for one channel, which keeps them as long as it lives."""
        return self.current().channel_credentials()

    def server_credentials(self, *, ask: bool = True) -> grpc.ServerCredentials:
        """Credentials for a server, which asks its clients for certificates unless told not to."""
        sent = self.current()

        def changed() -> grpc.ServerCertificateConfiguration | None:
            nonlocal sent
            current = self.current()
            if current is sent:
                return None
            sent = current
            return _configuration(current)

        return grpc.dynamic_ssl_server_credentials(
            _configuration(sent),
            changed,  # type: ignore[arg-type] # None is for: as before
            require_client_authentication=ask,
        )

    def _look(self) -> _Stamp:
        return tuple(_stamp(path) for path in self._files)

    def _reload(self, stamp: _Stamp) -> None:
        try:
            pem = _read(*self._files)
        except TlsError as error:
            # One file is replaced before the other: the next change is looked at again.
            self._stamp = stamp
            log.warning("certificates_not_reloaded", reason=str(error))
            return
        if self._look() == stamp:
            self._stamp, self._pem = stamp, pem
            log.info("certificates_reloaded", path=str(self._files[0]))


def is_loopback(address: str) -> bool:
    """Whether host:port is on this machine for certain."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name, which may mean anything
        return False


def _problem(settings: TlsSettings) -> str | None:
    given = [name for name in _FIELDS if getattr(settings, name)]
    if given and len(given) < len(_FIELDS):
        missing = [name for name in _FIELDS if name not in given]
        return f"{' and '.join(given)} without {' and '.join(missing)}: set all three or none"
    if given and settings.plaintext:
        return "plaintext and certificates exclude each other: leave out one of them"
    if given or settings.plaintext:
        return None
    beyond = [address for address in settings.peer_addresses if not is_loopback(address)]
    if beyond:
        return (
            f"{beyond[0]} is not on this machine: set {', '.join(_FIELDS)} to what `fastrun certs` "
            "makes, or plaintext=true on a network that nobody else reaches"
        )
    return None


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _read(cert: Path, key: Path, ca: Path) -> Pem:
    try:
        pem = Pem(cert.read_bytes(), key.read_bytes(), ca.read_bytes())
    except OSError as error:
        raise TlsError(f"cannot read {error.filename}: {error.strerror}") from error
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # An empty password: nobody is asked for one.
        context.load_cert_chain(cert, key, password="")
    except (ssl.SSLError, OSError, ValueError) as error:
        raise TlsError(f"{cert} and {key} are no certificate and its key: {error}") from error
    try:
        context.load_verify_locations(cadata=pem.ca.decode("ascii"))
    except (ssl.SSLError, UnicodeDecodeError, ValueError) as error:
        raise TlsError(f"{ca} is no certificate: {error}") from error
    return pem


def _configuration(pem: Pem) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(pem.key, pem.cert)], pem.ca)
