"""Makes fastrun.v1, the gRPC stubs, from protos/ whenever the project is installed or built."""

import os
import shutil
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.config import BuilderConfig
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parent


def generate(root: Path) -> None:
    """Write the Python stubs of every .proto below root/protos into root, typed.

    Raises:
        SystemExit: protoc refused a file; it has said why on stderr.
    """
    from importlib.resources import files  # noqa: PLC0415 - needed only while building

    from grpc_tools import protoc  # noqa: PLC0415 - needed only while building

    # The plugins lie beside this interpreter, or on the PATH that an isolated build sets.
    search = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    plugins = [
        f"--plugin={name}={found}"
        for name in ("protoc-gen-mypy", "protoc-gen-mypy_grpc")
        if (found := shutil.which(name, path=search))
    ]
    protos = sorted(str(path) for path in (root / "protos").rglob("*.proto"))
    arguments = [
        "protoc",
        f"-I{root / 'protos'}",
        f"-I{files('grpc_tools') / '_proto'}",
        *plugins,
        f"--python_out={root}",
        f"--grpc_python_out={root}",
        f"--mypy_out=readable_stubs:{root}",
        f"--mypy_grpc_out={root}",
        *protos,
    ]
    if protoc.main(arguments) != 0:
        raise SystemExit("protoc failed: see its message above")


class StubsHook(BuildHookInterface[BuilderConfig]):
    """Hatchling calls this before it packs a wheel or links an editable install."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        """Make the stubs."""
        generate(Path(self.root))


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    generate(ROOT)
