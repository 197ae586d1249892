"""What the protos promise to services of the previous minor version."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2
from previous_protos import FILE, PreviousProtos

from fastrun.v1 import (
    admin_pb2,
    auth_pb2,
    scheduler_pb2,
    worker_pb2,
)

PROTOS = Path(__file__).parents[2] / "protos"
TODAY = [admin_pb2, auth_pb2, scheduler_pb2, worker_pb2]


def broken(protos):
    """What buf finds that the previous version would not understand."""
    buf = shutil.which("buf", path=str(Path(sys.executable).parent))
    assert buf, "buf is part of the dev extra"
    command = [buf, "breaking", str(protos), "--against", str(FILE)]
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    assert result.returncode in (0, 100), result.stderr
    return result.stdout


def test_nothing_is_broken():
    """Every message of the previous version can be read today, and the other way about."""
    assert not broken(PROTOS)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("uint64 term = 3;", "string term = 3;"),
        ("uint64 term = 3;", "uint64 term = 33;"),
        ("uint64 term = 3;", ""),
    ],
    ids=["another type", "another number", "gone"],
)
def test_a_break_is_found(tmp_path, before, after):
    """A field that changes its type or its number, or goes without being reserved, is told."""
    shutil.copytree(PROTOS, tmp_path / "protos")
    file = tmp_path / "protos" / "fastrun" / "v1" / "scheduler.proto"
    said = file.read_text()
    assert before in said
    file.write_text(said.replace(before, after, 1))
    assert "EdgeHello" in broken(tmp_path / "protos")


def test_every_call_is_still_there():
    """No call of the previous version is gone, or has become a stream or ceased to be one."""
    calls = {
        f"/{service.full_name}/{method.name}": (
            method.client_streaming,
            method.server_streaming,
        )
        for file in TODAY
        for service in file.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    previous = PreviousProtos().methods
    assert previous
    for path, method in previous.items():
        assert calls.get(path) == (method.client_streams, method.server_streams), path


def test_the_wire_carries_nothing_newer():
    """What the previous version does not know is dropped on the way, and nothing else."""
    files = descriptor_pb2.FileDescriptorSet.FromString(FILE.read_bytes())
    (file,) = (each for each in files.file if each.name.endswith("scheduler.proto"))
    (hello,) = (each for each in file.message_type if each.name == "EdgeHello")
    (version,) = (each for each in hello.field if each.name == "version")
    hello.field.remove(version)
    older = PreviousProtos(files)
    sent = scheduler_pb2.EdgeHello(edge_id="e", version="0.2.0")
    kind = older.message("EdgeHello")
    left = scheduler_pb2.EdgeHello.FromString(older.reduced(kind, sent.SerializeToString()))
    assert left == scheduler_pb2.EdgeHello(edge_id="e")
