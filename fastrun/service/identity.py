"""Who may call what: a peer's role and name, as its certificate says, and the calls these open.

Pure. fastrun.service.rpc checks each call, and fastrun.service.tls makes sure that a certificate is
one of our own CA.
"""

import re
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum

SCHEME = "fastrun:"
ANONYMOUS = "anonymous"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


class Role(StrEnum):
    """What a process, or a person's command, is in a deployment."""

    EDGE = "edge"
    AUTH = "auth"
    SCHEDULER = "scheduler"
    WORKER = "worker"
    OPERATOR = "operator"

    @property
    def dns_name(self) -> str:
        """What its certificate is valid for, wherever it runs: clients ask for a role."""
        return f"{self}.fastrun"


@dataclass(frozen=True, slots=True)
class Identity:
    """One peer, such as ``operator/alice``.

    Raises:
        ValueError: the name is not one.
    """

    role: Role
    name: str

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(
                f"{self.name[:80]!r} is no name: use 1 to 63 letters, digits, dots, - and _"
            )

    def __str__(self) -> str:
        return f"{self.role}/{self.name}"

    @property
    def uri(self) -> str:
        """As it stands in the certificate."""
        return f"{SCHEME}{self}"

    @classmethod
    def parse(cls, text: str) -> "Identity":
        """Read ``ROLE/NAME``.

        Raises:
            ValueError: it is something else.
        """
        role, _, name = text.partition("/")
        if role not in set(Role):
            raise ValueError(f"{role[:80]!r} is no role: use one of {', '.join(Role)}")
        return cls(Role(role), name)


def of_uris(uris: Iterable[str]) -> Identity | None:
    """Find the identity among the URIs of a certificate; None: there is none, or not one only."""
    ours = [uri.removeprefix(SCHEME) for uri in uris if uri.startswith(SCHEME)]
    try:
        return Identity.parse(ours[0]) if len(ours) == 1 else None
    except ValueError:
        return None


_ALL = frozenset(Role)
_EDGE = frozenset({Role.EDGE})
_WORKER = frozenset({Role.WORKER})
_OPERATOR = frozenset({Role.OPERATOR})

# Every call that there is, and who may make it. What does not stand here nobody may call.
CALLS: Mapping[str, Mapping[str, frozenset[Role]]] = {
    "fastrun.v1.AuthService": {
        "VerifyKey": _EDGE,
        "WatchKeys": _EDGE,
        "RecordUsage": _EDGE,
        "QueryUsage": _EDGE,
        "Renew": _WORKER,
    },
    "fastrun.v1.AdminService": {
        "CreateAccount": _OPERATOR,
        "ApproveAccount": _OPERATOR,
        "SuspendAccount": _OPERATOR,
        "CloseAccount": _OPERATOR,
        "ListAccounts": _OPERATOR,
        "IssueKey": _OPERATOR,
        "RevokeKey": _OPERATOR,
        "RotateKey": _OPERATOR,
        "ListKeys": _OPERATOR,
        "SetLimits": _OPERATOR,
        "SetPrice": _OPERATOR,
        "ListPrices": _OPERATOR,
        "QueryUsage": _OPERATOR,
        "RecomputeUsage": _OPERATOR,
        "CreateWorkerToken": _OPERATOR,
        "ListAudit": _OPERATOR,
    },
    "fastrun.v1.SchedulerService": {
        "EdgeSession": _EDGE,
        "WorkerSession": _WORKER,
        "ListModels": _OPERATOR,
        "ForgetModel": _OPERATOR,
        "WatchFleet": _OPERATOR,
        "DrainWorker": _OPERATOR,
        "FindUsage": _EDGE,
    },
    "fastrun.v1.WorkerService": {
        "Attach": _EDGE,
        "Generate": _EDGE | _OPERATOR,
        "GetInfo": _ALL,
        "Drain": _OPERATOR,
    },
    "grpc.health.v1.Health": {"Check": _ALL, "Watch": _ALL},
    "grpc.reflection.v1alpha.ServerReflection": {"ServerReflectionInfo": _ALL},
}

# What may be called where clients have no certificate yet, and nothing else there.
WITHOUT_CERTIFICATE = frozenset(
    {
        "/fastrun.v1.EnrolmentService/GetAuthority",
        "/fastrun.v1.EnrolmentService/Enrol",
        "/grpc.health.v1.Health/Check",
    }
)


def refusal(method: str, peer: Identity | None) -> str | None:
    """Say in a sentence why a peer may not make a call; None: it may.

    Args:
        method: as gRPC names it, such as ``/fastrun.v1.AuthService/VerifyKey``.
        peer: whose certificate was shown; None: one of our CA that names nobody.
    """
    service, _, call = method.removeprefix("/").rpartition("/")
    roles = CALLS.get(service, {}).get(call, frozenset())
    if peer is not None and peer.role in roles:
        return None
    who = peer or f"a certificate without one {SCHEME}ROLE/NAME"
    allowed = " or ".join(sorted(roles)) or "nobody"
    return f"{who} may not call {service.rpartition('.')[2]}.{call}: it is for {allowed}"


def refusal_without_certificate(method: str) -> str | None:
    """Say in a sentence why a call may not be made without a certificate; None: it may."""
    if method in WITHOUT_CERTIFICATE:
        return None
    service, _, call = method.removeprefix("/").rpartition("/")
    return (
        f"nobody may call {service.rpartition('.')[2]}.{call} here: this port is for machines that "
        "join"
    )


_caller: ContextVar[Identity | None] = ContextVar("caller", default=None)


def caller() -> Identity | None:
    """Who makes the call that is being handled; None without TLS, where nobody can tell."""
    return _caller.get()


def actor() -> str:
    """Who makes the call that is being handled, as audit records name it: ``operator/alice``."""
    return str(_caller.get() or ANONYMOUS)


def bind_caller(peer: Identity | None) -> None:
    """Say for the rest of this task who makes the call."""
    _caller.set(peer)
