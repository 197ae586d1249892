"""The protos keep to the style that the design asks for."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

from fastrun.v1 import (
    admin_pb2,
    auth_pb2,
    error_pb2,
    generation_pb2,
    scheduler_pb2,
    worker_pb2,
)

FILES = [admin_pb2, auth_pb2, error_pb2, generation_pb2, scheduler_pb2, worker_pb2]
PROTOS = Path(__file__).parents[2] / "protos"


def test_buf_finds_nothing():
    """Buf's lint and format agree with what is committed."""
    buf = shutil.which("buf", path=str(Path(sys.executable).parent))
    assert buf, "buf is part of the dev extra"
    for command in (["lint"], ["format", "--diff", "--exit-code"]):
        result = subprocess.run(
            [buf, *command], check=False, cwd=PROTOS, capture_output=True, text=True
        )
        assert result.returncode == 0, result.stdout + result.stderr


def test_enums_begin_unspecified():
    """The value 0 of every enum means that nobody set it."""
    for file in FILES:
        for enum in file.DESCRIPTOR.enum_types_by_name.values():
            zero = enum.values_by_number[0].name
            assert zero.endswith("_UNSPECIFIED"), zero


def test_units_stand_in_names():
    """A number that is a duration or a size says its unit."""
    timelike = re.compile(r"(timeout|interval|waited|retry_after|duration)(?!.*_(ms|s)$)")
    for file in FILES:
        for message in file.DESCRIPTOR.message_types_by_name.values():
            for field in message.fields:
                assert not timelike.search(field.name), f"{message.name}.{field.name}"


def test_services_and_calls_say_what_holds():
    """Every service and every call has a comment above it."""
    for path in PROTOS.rglob("*.proto"):
        previous = ""
        for line in path.read_text().splitlines():
            if re.match(r"\s*(service|rpc) ", line):
                assert previous.strip().startswith("//"), f"{path.name}: {line.strip()}"
            previous = line
