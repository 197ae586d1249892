"""Other gateways, which are measured beside the edge where they are installed."""

import shutil
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import distributions
from pathlib import Path

import msgspec

from fastrun.bench.edge.errors import EdgeBenchError


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a peer runs."""

    program: str
    port: int
    """Its own, on this machine."""
    engine: str
    """host:port of what it stands before."""
    folder: Path
    """For files of its own."""


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """How one is run before an engine."""

    name: str
    program: str
    """What it is started by: in its own environment, or on the PATH."""
    command: Callable[[Place], list[str]]
    environ: Mapping[str, str] = {}


KEY = "sk-bench"
MODEL = "scripted"
NGINX = """\
worker_processes 1; daemon off; pid {folder}/pid; error_log stderr error;
events {{ worker_connections 4096; }}
http {{
  access_log off; keepalive_requests 1000000;
  client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
  uwsgi_temp_path {folder}; scgi_temp_path {folder};
  upstream engine {{ server {engine}; keepalive 1024; keepalive_requests 1000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=1024;
    location / {{
      proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off; tcp_nodelay on;
    }}
  }}
}}
"""
LITELLM = """\
model_list:
  - model_name: scripted
    litellm_params: {{model: openai/scripted, api_base: "http://{engine}/v1", api_key: sk-none}}
general_settings: {{master_key: sk-bench}}
litellm_settings: {{telemetry: false}}
"""


def _nginx(at: Place) -> list[str]:
    path = at.folder / "nginx.conf"
    path.write_text(NGINX.format(folder=at.folder, engine=at.engine, port=at.port))
    return [at.program, "-e", "stderr", "-p", str(at.folder), "-c", str(path)]


def _litellm(at: Place) -> list[str]:
    path = at.folder / "litellm.yaml"
    path.write_text(LITELLM.format(engine=at.engine))
    where = ["--host", "127.0.0.1", "--port", str(at.port)]
    return [at.program, "--config", str(path), *where, "--num_workers", "1"]


def _smg(at: Place) -> list[str]:
    return [at.program, "launch", *_router_arguments(at), "--log-level", "warn"]


def _vllm_router(at: Place) -> list[str]:
    return [at.program, *_router_arguments(at), "--log-level", "warning"]


def _router_arguments(at: Place) -> list[str]:
    return [
        *("--worker-urls", f"http://{at.engine}", "--policy", "round_robin"),
        *("--host", "127.0.0.1", "--port", str(at.port)),
        *("--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port())),
    ]


def _relay(at: Place) -> list[str]:
    return [at.program, "-P", "-m", "fastrun.bench.edge.relay", str(at.port), f"http://{at.engine}"]


ALL = (
    Peer(name="relay", program=sys.executable, command=_relay),
    Peer(name="nginx", program="nginx", command=_nginx),
    Peer(name="vllm-router", program="vllm-router", command=_vllm_router),
    Peer(name="smg", program="smg", command=_smg),
    Peer(
        name="litellm",
        program="litellm",
        command=_litellm,
        environ={"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR"},
    ),
)
DIRECT = "direct"
"""No gateway at all: the engine that stands behind the peers."""
NAMES = (DIRECT, *(each.name for each in ALL))


def named(name: str) -> Peer:
    """Return one of ALL."""
    return next(peer for peer in ALL if peer.name == name)


def installed(folder: Path | None, path: str) -> dict[str, str]:
    """Return the programs of all peers that are here, by name.

    Args:
        folder: holds a Python environment for each, such as `smg/bin/smg`.
        path: as in PATH.
    """
    found = {}
    for peer in ALL:
        own = None if folder is None else folder / peer.name / "bin" / peer.program
        program = str(own) if own and own.exists() else shutil.which(peer.program, path=path)
        if program:
            found[peer.name] = program
    return found


def version(name: str, program: str) -> str | None:
    """Return the version of a peer that is a Python package; None: it does not say one."""
    packages = [str(path) for path in Path(program).parents[1].glob("lib/python*/site-packages")]
    found = distributions(name=name, path=packages)
    return next((distribution.version for distribution in found), None)


def wanted(names: Sequence[str], programs: Mapping[str, str]) -> list[str]:
    """Return the peers that are named, else all that are here; pure.

    Raises:
        EdgeBenchError: one that is named is not here.
    """
    for name in names:
        if name not in NAMES:
            raise EdgeBenchError(f"there is no peer '{name}'; there are {', '.join(NAMES)}")
        if name != DIRECT and name not in programs:
            raise EdgeBenchError(
                f"{name} is not installed: give it an environment in a folder {name}, "
                "and name the folder above it with --peers"
            )
    return list(names) or [name for name in NAMES if name == DIRECT or name in programs]


def free_port() -> int:
    """Return a port that nobody has now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def environ_of(peer: Peer, environ: Mapping[str, str]) -> dict[str, str]:
    """Return what a peer is started with: no proxies, since all is on this machine; pure."""
    kept = {name: value for name, value in environ.items() if "PROXY" not in name.upper()}
    return {**kept, **peer.environ}
