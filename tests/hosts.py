"""Machines on a network of their own: network namespaces, joined by a switch in another one.

Nothing of it is in the namespace of the tests, and all of it is gone in the end. The file system is
the same everywhere, so each host keeps its files in a folder of its own.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pytest

T = TypeVar("T")

CLONE_NEWNET = 0x40000000
SUBNET = "10.77.0"
PATIENCE_S = 60


@dataclass
class Host:
    """One machine, with one address.

    Args:
        name: what tests call it.
        namespace: what the kernel calls it.
        address: in the network.
        folder: of its own.
    """

    name: str
    namespace: str
    address: str
    folder: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def spawn(self, name: str, *command: str, **environ: str) -> subprocess.Popen[bytes]:
        """Start a program here; its output goes to NAME.log in the host's folder."""
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                ("ip", "netns", "exec", self.namespace, *command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environ(environ),
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def run(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run a command of fastrun here to its end."""
        return subprocess.run(
            (
                "ip",
                "netns",
                "exec",
                self.namespace,
                sys.executable,
                "-m",
                "fastrun.cli",
                *arguments,
            ),
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=self._environ(environ),
            timeout=PATIENCE_S,
        )

    def log(self, name: str) -> str:
        """What a program has said."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def submit(self, function: Callable[[], T]) -> "Future[T]":
        """Call a function in a thread on this host: sockets that it opens are of here."""
        future: Future[T] = Future()

        def inside() -> None:
            try:
                _enter(self.namespace)
                future.set_result(function())
            except BaseException as error:  # noqa: BLE001 - told to who waits
                future.set_exception(error)

        threading.Thread(target=inside, name=self.name).start()
        return future

    def kill(self) -> None:
        """End all that was started here."""
        for process in self.processes:
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _environ(self, environ: dict[str, str]) -> dict[str, str]:
        ours = {name: value for name, value in os.environ.items() if "PROXY" not in name.upper()}
        for name in ("FASTRUN_CONTEXT", "FASTRUN_DATA"):
            ours.pop(name, None)
        return {**ours, "XDG_DATA_HOME": str(self.folder), "HOME": str(self.folder), **environ}


class Network:
    """Hosts that reach each other, as long as their cables are in."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._prefix = f"fastrun-{os.getpid()}"
        self._switch = f"{self._prefix}-switch"
        self.hosts: dict[str, Host] = {}

    def open(self) -> None:
        """Make the switch.

        Raises:
            CalledProcessError: this machine does not let us.
        """
        _ip("netns", "add", self._switch)
        _ip("-n", self._switch, "link", "add", "switch", "type", "bridge")
        _ip("-n", self._switch, "link", "set", "switch", "up")

    def add(self, name: str) -> Host:
        """Plug in a host."""
        namespace, number = f"{self._prefix}-{name}", len(self.hosts) + 1
        folder = self._root / name
        folder.mkdir()
        folder.chmod(0o711)  # Postgres passes as another user
        host = self.hosts[name] = Host(name, namespace, f"{SUBNET}.{number}", folder)
        _ip("netns", "add", namespace)
        _ip(
            *("-n", namespace, "link", "add", "eth0", "type", "veth"),
            *("peer", "name", name, "netns", self._switch),
        )
        _ip("-n", self._switch, "link", "set", name, "master", "switch", "up")
        _ip("-n", namespace, "addr", "add", f"{host.address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            _ip("-n", namespace, "link", "set", device, "up")
        return host

    def unplug(self, name: str) -> None:
        """Take a host off the network."""
        _ip("-n", self._switch, "link", "set", name, "down")

    def plug(self, name: str) -> None:
        """Put it back."""
        _ip("-n", self._switch, "link", "set", name, "up")

    def close(self) -> None:
        """End everything on all hosts, and the hosts with it."""
        for host in self.hosts.values():
            host.kill()
        for namespace in (*(host.namespace for host in self.hosts.values()), self._switch):
            subprocess.run(("ip", "netns", "del", namespace), check=False, capture_output=True)


@contextmanager
def network(root: Path) -> Iterator[Network]:
    """A network for the length of a block; the test is skipped where there can be none."""
    if shutil.which("ip") is None:
        pytest.skip("there is no ip command: install iproute2")
    found = Network(root)
    try:
        try:
            found.open()
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces are not permitted here: {error.stderr.strip()}")
        yield found
    finally:
        found.close()


def _ip(*arguments: str) -> None:
    subprocess.run(("ip", *arguments), check=True, capture_output=True, text=True)


def _enter(namespace: str) -> None:
    """Move this thread to a namespace, for good: it must be a thread of its own."""
    with Path("/run/netns", namespace).open("rb") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")
