"""Installs the worker's wheel into NVIDIA's image beside what is there, and changes nothing of it.

    python3 gpu_packages.py fastrun-0.1.0-py3-none-any.whl nvidia-ml-py --raise grpcio

What the image has is frozen first, and is a constraint of the installation. Afterwards it is
compared: a package that is gone, or has another version and was not to be raised, is an error, and
so is every complaint of `pip check` that is new. Run by Dockerfile.gpu; needs nothing but pip.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

# Of PEP 440; what Debian's own packages have besides, pip takes in no constraint.
VERSION = re.compile(
    r"(\d+!)?\d+(\.\d+)*((a|b|rc)\d+)?(\.post\d+)?(\.dev\d+)?(\+[a-z0-9]+([._-][a-z0-9]+)*)?"
)


def packages(freeze: str) -> dict[str, str]:
    """Read `pip list --format=freeze`: name, as pip compares it, to version."""
    pairs = (line.partition("==") for line in freeze.splitlines() if "==" in line)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, _, version in pairs}


def constraints(before: Mapping[str, str], raised: Collection[str]) -> list[str]:
    """Write a line for each package that is there: it stays, or may only be raised."""
    return [
        f"{name}{'>=' if name in raised else '=='}{version}"
        for name, version in before.items()
        if VERSION.fullmatch(version)
    ]


def problems(
    before: Mapping[str, str], after: Mapping[str, str], raised: Collection[str]
) -> list[str]:
    """Name each package that is gone or another one, and was to stay."""
    return [
        f"{name} was {version} and is {after.get(name, 'gone')}"
        for name, version in before.items()
        if after.get(name) != version and not (name in raised and name in after)
    ]


def new_complaints(before: Sequence[str], after: Sequence[str]) -> list[str]:
    """Lines of `pip check` that were not there before the installation; images have some."""
    return [line for line in after if line not in before]


def _pip(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run pip of this Python; what it prints is captured."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    # The image may bring constraints of its own, which are looser than what it has.
    environ = {name: value for name, value in os.environ.items() if name != "PIP_CONSTRAINT"}
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, env=environ)  # noqa: S603


def _packages() -> dict[str, str]:
    listed = _pip("list", "--format=freeze")
    listed.check_returncode()
    return packages(listed.stdout)


def _complaints() -> list[str]:
    checked = _pip("check")
    return checked.stdout.splitlines() if checked.returncode else []


def main(arguments: Sequence[str]) -> int:
    """Install, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("wanted", nargs="+", metavar="PACKAGE", help="or the path of a wheel")
    parser.add_argument("--raise", dest="raised", nargs="*", default=[], metavar="PACKAGE")
    chosen = parser.parse_args(arguments)

    before, complained = _packages(), _complaints()
    with tempfile.TemporaryDirectory() as folder:
        frozen = Path(folder) / "constraints.txt"
        frozen.write_text("\n".join(constraints(before, chosen.raised)) + "\n")
        options = ["--no-cache-dir", "--only-binary=:all:", "--constraint", str(frozen)]
        installed = _pip("install", *options, *chosen.wanted)
    print(installed.stdout)
    if installed.returncode:
        return installed.returncode
    after = _packages()

    for name in sorted(after.keys() - before.keys()):
        print(f"new: {name} {after[name]}")
    for name in sorted(set(chosen.raised) & before.keys()):
        print(f"raised: {name} {before[name]} -> {after.get(name, 'gone')}")
    wrong = [
        *problems(before, after, chosen.raised),
        *new_complaints(complained, _complaints()),
    ]
    for problem in wrong:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
