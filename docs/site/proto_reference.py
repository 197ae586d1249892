"""The pages of the protos: one for each file of protos/, made from its comments."""

from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    ServiceDescriptorProto,
)
from grpc_tools import protoc
from markdown_text import prose, table

Place = tuple[int, ...]
"""Where something stands in a file, as descriptor.proto counts."""

_TYPES = {number: name[5:].lower() for name, number in FieldDescriptorProto.Type.items()}
_ENUM_VALUES = EnumDescriptorProto.VALUE_FIELD_NUMBER
_FIELDS = DescriptorProto.FIELD_FIELD_NUMBER
_NESTED = DescriptorProto.NESTED_TYPE_FIELD_NUMBER
_NESTED_ENUMS = DescriptorProto.ENUM_TYPE_FIELD_NUMBER
_METHODS = ServiceDescriptorProto.METHOD_FIELD_NUMBER


def render(protos: Path) -> dict[str, str]:
    """Make the pages.

    Args:
        protos: the folder that the imports of its files begin in.

    Returns:
        Their texts, by the file's name without its ending.

    Raises:
        SystemExit: protoc refused a file; it has said why on stderr.
    """
    return {Path(file.name).stem: _Page(file).render() for file in _described(protos)}


def _described(protos: Path) -> Sequence[FileDescriptorProto]:
    with TemporaryDirectory() as folder:
        out = Path(folder) / "descriptors"
        arguments = [
            "protoc",
            f"-I{protos}",
            f"-I{files('grpc_tools') / '_proto'}",
            "--include_source_info",
            f"--descriptor_set_out={out}",
            *sorted(str(path) for path in protos.rglob("*.proto")),
        ]
        if protoc.main(arguments) != 0:
            raise SystemExit("protoc failed: see its message above")
        return FileDescriptorSet.FromString(out.read_bytes()).file


class _Page:
    """One file."""

    def __init__(self, file: FileDescriptorProto) -> None:
        self._file = file
        self._comments: Mapping[Place, str] = {
            tuple(location.path): location.leading_comments or location.trailing_comments
            for location in file.source_code_info.location
        }

    def render(self) -> str:
        title = Path(self._file.name).name
        head = f"Made from `protos/{self._file.name}`. Its comments are the contract."
        return "\n".join([f"# {title}", "", head, "", *self._services(), *self._types()])

    def _services(self) -> Iterator[str]:
        for index, service in enumerate(self._file.service):
            place = (FileDescriptorProto.SERVICE_FIELD_NUMBER, index)
            yield from (_anchor(self._file, service.name), f"## {service.name}", "")
            yield from (self._comment(place), "")
            for number, method in enumerate(service.method):
                yield from (f"### {service.name}/{method.name}", "")
                asked = _call(method.input_type, streamed=method.client_streaming)
                answered = _call(method.output_type, streamed=method.server_streaming)
                yield from (f"{asked} → {answered}", "")
                yield from (self._comment((*place, _METHODS, number)), "")

    def _types(self) -> Iterator[str]:
        for index, message in enumerate(self._file.message_type):
            place = (FileDescriptorProto.MESSAGE_TYPE_FIELD_NUMBER, index)
            yield from self._message(message, message.name, place)
        for index, enum in enumerate(self._file.enum_type):
            place = (FileDescriptorProto.ENUM_TYPE_FIELD_NUMBER, index)
            yield from self._enum(enum, enum.name, place)

    def _message(self, message: DescriptorProto, name: str, place: Place) -> Iterator[str]:
        yield from (_anchor(self._file, name), f"## {name}", "", self._comment(place), "")
        rows = [
            (
                f"`{field.name}`",
                str(field.number),
                _type(field, message),
                self._comment((*place, _FIELDS, number)),
            )
            for number, field in enumerate(message.field)
        ]
        if rows:
            yield table(("field", "number", "type", "meaning"), rows)
        yield from _choices(message)
        for number, nested in enumerate(message.nested_type):
            if not nested.options.map_entry:
                yield from self._message(nested, f"{name}.{nested.name}", (*place, _NESTED, number))
        for number, enum in enumerate(message.enum_type):
            yield from self._enum(enum, f"{name}.{enum.name}", (*place, _NESTED_ENUMS, number))

    def _enum(self, enum: EnumDescriptorProto, name: str, place: Place) -> Iterator[str]:
        yield from (_anchor(self._file, name), f"## {name}", "", self._comment(place), "")
        yield table(
            ("value", "number", "meaning"),
            [
                (f"`{each.name}`", str(each.number), self._comment((*place, _ENUM_VALUES, number)))
                for number, each in enumerate(enum.value)
            ],
        )

    def _comment(self, place: Place) -> str:
        return prose(self._comments.get(place, ""))


def _choices(message: DescriptorProto) -> Iterator[str]:
    """Say which fields exclude each other; protoc counts those that are only optional, too."""
    fields = [f for f in message.field if f.HasField("oneof_index") and not f.proto3_optional]
    for index, group in groupby(fields, key=lambda field: field.oneof_index):
        names = ", ".join(f"`{field.name}`" for field in group)
        yield f"`{message.oneof_decl[index].name}` is one of {names}.\n"


def _call(name: str, *, streamed: bool) -> str:
    return f"stream of {_link(name)}" if streamed else _link(name)


def _type(field: FieldDescriptorProto, message: DescriptorProto) -> str:
    entries = {each.name: each for each in message.nested_type if each.options.map_entry}
    if entry := entries.get(field.type_name.rpartition(".")[2]):
        key, value = entry.field
        return f"map of {_type(key, entry)} to {_type(value, entry)}"
    kind = _link(field.type_name) if field.type_name else _TYPES[field.type]
    if field.label == FieldDescriptorProto.LABEL_REPEATED:
        return f"list of {kind}"
    return f"{kind}, optional" if field.proto3_optional else kind


def _anchor(file: FileDescriptorProto, name: str) -> str:
    return f"({file.package}.{name})="


def _link(type_name: str) -> str:
    """Link to a type of ours; those of protobuf itself are not on these pages."""
    name = type_name.removeprefix(".")
    shown = name.removeprefix("fastrun.v1.")
    return f"`{name}`" if name.startswith("google.") else f"[{shown}](#{name})"
