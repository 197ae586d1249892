"""Reads the metadata of a GGUF file, and nothing of its weights.

The gguf package would take seconds to do so, and numpy, for what are strings and numbers.
"""

import struct
from pathlib import Path
from typing import BinaryIO, TypeAlias

from gpu_worker.engine.cpu.errors import ModelError

Scalar: TypeAlias = int | float | bool | str
Metadata: TypeAlias = dict[str, Scalar | list[Scalar]]

MAGIC = b"GGUF"
VERSIONS = (2, 3)
STRING, ARRAY = 8, 9
NUMBERS = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
LENGTH = NUMBERS[10]


def read_metadata(path: Path) -> Metadata:
    """Return all key-value pairs of a GGUF file.

    Raises:
        ModelError: it is not a GGUF file, is cut short or cannot be read.
    """
    try:
        with path.open("rb") as file:
            if file.read(4) != MAGIC:
                raise ModelError(f"{path} is not a GGUF file")
            (version,) = struct.unpack("<I", _take(file, 4))
            if version not in VERSIONS:
                raise ModelError(f"{path} has GGUF version {version}; 2 and 3 can be read")
            _take(file, 8)  # the number of tensors
            size = path.stat().st_size
            return dict(_pair(file, size) for _ in range(_length(file, size)))
    except (struct.error, UnicodeDecodeError, KeyError, EOFError) as error:
        raise ModelError(f"{path} is damaged: its metadata cannot be read") from error
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from error


def _pair(file: BinaryIO, limit: int) -> tuple[str, Scalar | list[Scalar]]:
    key = _string(file, limit)
    kind = _number(file, NUMBERS[4])
    if kind != ARRAY:
        return key, _scalar(file, int(kind), limit)
    kind = int(_number(file, NUMBERS[4]))
    count = _length(file, limit)
    if kind == STRING:
        return key, [_string(file, limit) for _ in range(count)]
    one = NUMBERS[kind]
    values = struct.unpack(f"<{count}{one.format[-1]}", _take(file, count * one.size))
    return key, list(values)


def _scalar(file: BinaryIO, kind: int, limit: int) -> Scalar:
    return _string(file, limit) if kind == STRING else _number(file, NUMBERS[kind])


def _string(file: BinaryIO, limit: int) -> str:
    return _take(file, _length(file, limit)).decode()


def _length(file: BinaryIO, limit: int) -> int:
    """Read a length; in a file of this size it cannot be larger."""
    length = int(_number(file, LENGTH))
    if length > limit:
        raise EOFError
    return length


def _number(file: BinaryIO, kind: struct.Struct) -> int | float | bool:
    value: int | float | bool = kind.unpack(_take(file, kind.size))[0]
    return value


def _take(file: BinaryIO, size: int) -> bytes:
    data = file.read(size)
    if len(data) < size:
        raise EOFError
    return data
