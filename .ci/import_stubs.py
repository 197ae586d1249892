"""Imports every stub, and fails where the protobuf runtime is not of the version that is meant."""

import importlib
import pkgutil
import sys

import google.protobuf

import fastrun.v1

version = google.protobuf.__version__
if not version.startswith(f"{sys.argv[1]}."):
    sys.exit(f"this is protobuf {version}, not {sys.argv[1]}")
names = [module.name for module in pkgutil.iter_modules(fastrun.v1.__path__)]
for name in names:
    importlib.import_module(f"fastrun.v1.{name}")
if not names:
    sys.exit("there are no stubs")
print(f"{len(names)} stubs load on protobuf {version}")
