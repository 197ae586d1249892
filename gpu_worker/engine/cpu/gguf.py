"""Reads what a GGUF file says about itself: metadata, and where which tensor lies.

The gguf package would take seconds to do so, for what are strings and numbers.
"""

import math
import struct
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeAlias

from gpu_worker.engine.errors import ModelError

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
# Weights in a block, and its bytes, of ggml's data types.
BLOCKS = {
    0: (1, 4),  # F32
    1: (1, 2),  # F16
    2: (32, 18),  # Q4_0
    3: (32, 20),  # Q4_1
    6: (32, 22),  # Q5_0
    7: (32, 24),  # Q5_1
    8: (32, 34),  # Q8_0
    10: (256, 84),  # Q2_K
    11: (256, 110),  # Q3_K
    12: (256, 144),  # Q4_K
    13: (256, 176),  # Q5_K
    14: (256, 210),  # Q6_K
    30: (1, 2),  # BF16
}


class Tensor(NamedTuple):
    """Where a tensor's data lies."""

    name: str
    shape: tuple[int, ...]  # the innermost dimension last, as in numpy
    kind: int  # ggml's number of the data type
    offset: int  # from the start of the file, in bytes

    @property
    def end(self) -> int:
        """Where its data ends at the earliest."""
        weights, size = BLOCKS.get(self.kind, (1, 0))
        return self.offset + math.prod(self.shape) // weights * size


class Gguf(NamedTuple):
    """All that a file says before its data begins."""

    metadata: Metadata
    tensors: list[Tensor]


def read_gguf(path: Path) -> Gguf:
    """Read all but the data.

    Raises:
        ModelError: it is not a GGUF file, is cut short or cannot be read.
    """
    try:
        with path.open("rb") as file:
            return _read(file, path)
    except (struct.error, UnicodeDecodeError, KeyError, EOFError) as error:
        raise ModelError(f"{path} is damaged or cut short: get the file again") from error
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from error


def _read(file: BinaryIO, path: Path) -> Gguf:
    if file.read(4) != MAGIC:
        raise ModelError(f"{path} is not a GGUF file")
    version = _number(file, NUMBERS[4])
    if version not in VERSIONS:
        raise ModelError(f"{path} has GGUF version {version}; 2 and 3 can be read")
    size = path.stat().st_size
    tensor_count = _length(file, size)
    metadata = dict(_pair(file, size) for _ in range(_length(file, size)))
    tensors = [_tensor(file, size) for _ in range(tensor_count)]
    alignment = int(str(metadata.get("general.alignment", 32)))
    begin = -(-file.tell() // alignment) * alignment
    tensors = [tensor._replace(offset=begin + tensor.offset) for tensor in tensors]
    # The converter would read beyond the end.
    if any(tensor.end > size for tensor in tensors):
        raise EOFError
    return Gguf(metadata, tensors)


def _tensor(file: BinaryIO, limit: int) -> Tensor:
    name = _string(file, limit)
    dimensions = int(_number(file, NUMBERS[4]))
    shape = tuple(_length(file, limit) for _ in range(min(dimensions, limit)))
    return Tensor(name, shape[::-1], int(_number(file, NUMBERS[4])), _length(file, limit))


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
