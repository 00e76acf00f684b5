"""Protobuf schemas: from a registry's text to descriptors, by protoc in a process of its own, and within limits.

A registry has the text of a .proto file, or its serialized descriptor in Base64, which Confluent's client for Python
registers. Both are given to protoc, Google's own compiler, which grpcio-tools brings. It read 1 MiB of text in 0.8 s of
CPU, where a parser in Python took 1 s for 53 kB. It runs in another process, because schemas come from others.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from kohort.errors import CorruptDataError, InvalidInputError, RetriableError
from kohort.schema_registry.prefix import PREFIX_BYTES

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FileDescriptor
    from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto, FileDescriptorSet

Imports: TypeAlias = "tuple[tuple[str, str], ...]"
"""The files that a schema refers to: the name of each as `import` has it, and its text."""

PROTOC_TIMEOUT_S = 20.0
"""How long protoc may run; 1 MiB takes 0.8 s of CPU."""
TEXT_BYTES_MAX = 1024 * 1024
"""Most bytes of a schema and the files that it refers to: those of one schema in a registry."""
SET_BYTES_MAX = 16 * TEXT_BYTES_MAX
"""Most bytes of what protoc makes of it."""
IMPORTS_MAX = 64
"""Most files that a schema refers to: each is a request to the registry."""
PARTS_MAX = 10_000
"""Most messages, fields and values of enums in a schema."""
INDEXES_MAX = 32
"""Most indexes before a value: protoc refuses messages that are nested deeper."""
_MAIN = "kohort-schema.proto"
_BUILT_IN = "google/protobuf/"
_IMPORT_NAME = re.compile(r"(?:[A-Za-z0-9_+-][A-Za-z0-9_+.-]*/)*[A-Za-z0-9_+-][A-Za-z0-9_+.-]*\.proto")
_BASE64 = re.compile(r"[A-Za-z0-9+/\s]+=*\s*")
_LOG_LINE = re.compile(r"WARNING: |[IWEF]\d{4} ")
_MISSING = "Protobuf values need protobuf and grpcio-tools: pip install 'kohort[protobuf]'"


def is_built_in(name: str) -> bool:
    """Return whether a file is one of Protobuf's own, as google/protobuf/timestamp.proto; a registry's is not used."""
    return name.startswith(_BUILT_IN)


def compiled(text: str, imports: Imports, name: str) -> ProtobufSchema:
    """Return the schema of a text.

    Args:
        text: a .proto file, or its serialized descriptor in Base64.
        imports: the files that it refers to, directly or through others.
        name: names the schema in errors.

    Raises:
        InvalidInputError: protoc refuses it, it is beyond a limit, or a library is not installed.
        RetriableError: this machine can't run protoc.
    """
    if find_spec("grpc_tools") is None:  # it needs protobuf
        raise InvalidInputError(_MISSING)
    imports = tuple((path, found) for path, found in imports if not is_built_in(path))
    _check_imports(text, imports, name)
    with tempfile.TemporaryDirectory(prefix="kohort-protoc-") as folder:
        try:
            return ProtobufSchema(_run_protoc(Path(folder), ((_MAIN, text), *imports), name), name)
        except OSError as error:
            raise RetriableError(f"protoc can't run for {name}: {error}") from None


def _check_imports(text: str, imports: Imports, name: str) -> None:
    if sum(len(found.encode(errors="replace")) for found in (text, *(found for _, found in imports))) > TEXT_BYTES_MAX:
        raise InvalidInputError(f"{name} has more than {TEXT_BYTES_MAX} bytes with the files that it refers to")
    paths = [path for path, _ in imports]
    if len(paths) > IMPORTS_MAX:
        raise InvalidInputError(f"{name} refers to more than {IMPORTS_MAX} files")
    for path in paths:
        if not _IMPORT_NAME.fullmatch(path) or len(path) > 200 or path == _MAIN:
            raise InvalidInputError(f"{name} refers to a file whose name is not like folder/file.proto: {path[:80]!r}")
        if paths.count(path) > 1 or any(other.startswith(f"{path}/") for other in paths):
            raise InvalidInputError(f"{name} refers to two files of the name {path[:80]!r}")


def _run_protoc(folder: Path, files: Sequence[tuple[str, str]], name: str) -> FileDescriptorSet:
    """Return all files of a schema, each after those that it imports, as protoc makes them.

    Raises:
        InvalidInputError: protoc refuses one of them, or takes too long.
        OSError: this machine fails.
    """
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    texts, serialized, made = folder / "texts", FileDescriptorSet(), folder / "made"
    texts.mkdir()
    for path, text in files:
        found = _serialized(text, path)
        if found is not None:
            serialized.file.append(found)
            continue
        (texts / path).parent.mkdir(parents=True, exist_ok=True)
        (texts / path).write_bytes(text.encode(errors="replace"))
    (folder / "serialized").write_bytes(serialized.SerializeToString())
    command = (
        # -P: the current folder may hold a module of the same name.
        *(sys.executable, "-P", "-m", "grpc_tools.protoc", f"-I{texts}"),
        *((f"--descriptor_set_in={folder / 'serialized'}",) if serialized.file else ()),
        *("--include_imports", f"--descriptor_set_out={made}", _MAIN),
    )
    try:
        done = subprocess.run(command, capture_output=True, timeout=PROTOC_TIMEOUT_S, check=False, env=_environment())
    except subprocess.TimeoutExpired:
        raise InvalidInputError(f"{name} takes protoc longer than {PROTOC_TIMEOUT_S:g} s") from None
    if done.returncode or not made.exists():
        said = done.stderr.decode(errors="replace").replace(f"{texts}{os.sep}", "").splitlines()
        reasons = [line for line in said if line.strip() and not _LOG_LINE.match(line)]
        raise InvalidInputError(f"protoc refuses {name}: {'; '.join(reasons[:3])[:300] or done.returncode}")
    if made.stat().st_size > SET_BYTES_MAX:
        raise InvalidInputError(f"{name} makes more than {SET_BYTES_MAX} bytes of descriptors")
    return FileDescriptorSet.FromString(made.read_bytes())


def _environment() -> dict[str, str]:
    """Return the environment of protoc, which finds packages where this process does, as those of a Spark session."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(part for part in sys.path if part)}


def _serialized(text: str, path: str) -> FileDescriptorProto | None:
    """Return the descriptor of a file in Base64, under its name here; None: it is text."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.message import DecodeError

    if not _BASE64.fullmatch(text):
        return None
    try:
        found = FileDescriptorProto.FromString(base64.b64decode(text))
    except (binascii.Error, DecodeError, ValueError):
        return None
    found.name = path
    return found


class ProtobufSchema:
    """A schema with descriptors of its own.

    Attributes:
        file: the schema's file.
        set: all files, each after those that it imports.
    """

    file: FileDescriptor

    def __init__(self, files: FileDescriptorSet, name: str) -> None:
        """Build the descriptors.

        Args:
            files: all files, each after those that it imports; the last is the schema's.
            name: names the schema in errors.

        Raises:
            InvalidInputError: it has no message, too many parts, or descriptors that contradict each other.
        """
        from google.protobuf.descriptor_pool import DescriptorPool

        self.set, self.name = files, name
        if not files.file or not files.file[-1].message_type:
            raise InvalidInputError(f"{name} has no message")
        if any(isinstance(file.name, bytes) for file in files.file):  # protobuf has bytes where text is no UTF-8
            raise InvalidInputError(f"{name} is no Protobuf schema: a file's name is no text")
        parts = list(_parts(files))
        if len(parts) > PARTS_MAX:
            raise InvalidInputError(f"{name} has more than {PARTS_MAX} messages, fields and values of enums")
        entries = [part for part in parts if part.DESCRIPTOR.name == "DescriptorProto" and part.options.map_entry]
        if any([field.name for field in entry.field] != ["key", "value"] for entry in entries):
            raise InvalidInputError(f"{name} has a map whose entries are no key and value")
        pool = DescriptorPool()
        try:
            for file in files.file:
                pool.Add(file)
            self.file = pool.FindFileByName(files.file[-1].name)
        except (TypeError, ValueError, KeyError) as error:
            raise InvalidInputError(f"{name} is no Protobuf schema: {str(error)[:200]}") from None

    @classmethod
    def of_set(cls, text: str, name: str) -> ProtobufSchema:
        """Return the schema of a serialized FileDescriptorSet in Base64, as `protoc --include_imports` makes it.

        Raises:
            InvalidInputError: it is none.
        """
        try:
            from google.protobuf.descriptor_pb2 import FileDescriptorSet
            from google.protobuf.message import DecodeError
        except ImportError:
            raise InvalidInputError(_MISSING) from None
        try:
            return cls(FileDescriptorSet.FromString(base64.b64decode(text)), name)
        except (binascii.Error, DecodeError, ValueError):
            raise InvalidInputError(f"{name} is no descriptor set of Protobuf in Base64") from None

    def set_text(self) -> str:
        """Return all files as Base64, which `of_set` reads."""
        return base64.b64encode(self.set.SerializeToString(deterministic=True)).decode()

    def file_text(self) -> str:
        """Return the schema's file as Base64, as Confluent's client for Python registers it."""
        return base64.b64encode(self.set.file[-1].SerializeToString(deterministic=True)).decode()

    def identity(self) -> str:
        """Return a text that is equal for equal files, which may differ in comments and in their own names."""
        from google.protobuf.descriptor_pb2 import FileDescriptorProto

        bare = FileDescriptorProto()
        bare.CopyFrom(self.set.file[-1])
        bare.ClearField("name")
        bare.ClearField("source_code_info")
        messages = list(bare.message_type)
        while messages:
            message = messages.pop()
            messages += message.nested_type
            for field in (*message.field, *message.extension):
                if field.json_name == _json_name(field.name):
                    field.ClearField("json_name")
        return base64.b64encode(bare.SerializeToString(deterministic=True)).decode()

    def message_named(self, name: str | None) -> Descriptor:
        """Return a message by its name, with or without the package; None: the file's first.

        Raises:
            InvalidInputError: the file has none of this name.
        """
        if name is None:
            return self.message_at((0,))
        for full in (name, f"{self.file.package}.{name}"):
            for found in self._messages(self.file.message_types_by_name.values()):
                if found.full_name == full:
                    return found
        raise InvalidInputError(f"{self.name} has no message {name[:80]!r}")

    def _messages(self, found: Any) -> Iterator[Descriptor]:
        for message in found:
            if not message.GetOptions().map_entry:
                yield message
                yield from self._messages(message.nested_types)

    def message_at(self, indexes: tuple[int, ...]) -> Descriptor:
        """Return the message at the indexes before a value: one for each level, from the file's messages inwards.

        Raises:
            CorruptDataError: there is none, or clients count otherwise: those in Python count the entries that maps
                make, those in Java do not.
        """
        with_entries, without = self._found(indexes, entries=True), self._found(indexes, entries=False)
        if with_entries is not None and with_entries.GetOptions().map_entry:
            with_entries = None
        if with_entries is not None and without is not None and with_entries.full_name != without.full_name:
            raise CorruptDataError(
                f"{self.name}: the indexes {list(indexes)} are {with_entries.full_name} for clients in Python and "
                f"{without.full_name} for those in Java, because of a map before it"
            )
        found = with_entries or without
        if found is None:
            raise CorruptDataError(f"{self.name} has no message at the indexes {list(indexes)}")
        return found

    def _found(self, indexes: tuple[int, ...], *, entries: bool) -> Descriptor | None:
        found: Descriptor | None = None
        for index in indexes:
            inside = list(self.file.message_types_by_name.values()) if found is None else list(found.nested_types)
            if not entries:
                inside = [message for message in inside if not message.GetOptions().map_entry]
            if index >= len(inside):
                return None
            found = inside[index]
        return found

    def indexes_of(self, message: Descriptor) -> tuple[int, ...]:
        """Return the indexes of a message of the file.

        Raises:
            InvalidInputError: clients would not agree on it.
        """
        found: list[int] = []
        inner = message
        while inner.containing_type is not None:
            outer = inner.containing_type
            found.append([nested.full_name for nested in outer.nested_types].index(inner.full_name))
            inner = outer
        found.append(list(self.file.message_types_by_name).index(inner.name))
        indexes = tuple(reversed(found))
        try:
            self.message_at(indexes)
        except CorruptDataError as error:
            raise InvalidInputError(f"{error.message}: write a message of the file's first level") from None
        if self._found(indexes, entries=False) != message:
            raise InvalidInputError(
                f"{self.name}: clients in Java count {message.full_name} otherwise than those in Python, because of a "
                "map before it: write a message of the file's first level"
            )
        return indexes


def _json_name(name: str) -> str:
    """Return a field's name in JSON, if the schema gives no other: with capitals for underscores."""
    return re.sub(r"_+(.?)", lambda found: found[1].upper(), name)


def _parts(files: FileDescriptorSet) -> Iterator[Any]:
    """Yield the messages, fields, enums and their values of files that are not built in."""
    for file in files.file:
        if not is_built_in(file.name):
            left: list[DescriptorProto] = list(file.message_type)
            enums = list(file.enum_type)
            yield from file.extension
            while left:
                message = left.pop()
                yield message
                yield from message.field
                yield from message.extension
                left += message.nested_type
                enums += message.enum_type
            for enum in enums:
                yield enum
                yield from enum.value


# -- The indexes before a value


def read_indexes(data: bytes) -> tuple[tuple[int, ...], int]:
    """Return the indexes of the message after a schema's id, and where the message begins.

    Raises:
        CorruptDataError: they are truncated, or no indexes.
    """
    count, at = _read_varint(data, PREFIX_BYTES)
    if count == 0:  # the short form of the file's first message
        return (0,), at
    if not 0 < count <= INDEXES_MAX:
        raise CorruptDataError(f"no indexes of a message: their number is {count}")
    found = []
    for _ in range(count):
        index, at = _read_varint(data, at)
        if index < 0:
            raise CorruptDataError(f"no index of a message: {index}")
        found.append(index)
    return tuple(found), at


def indexes_bytes(indexes: tuple[int, ...]) -> bytes:
    """Return the bytes of indexes: a zero for the file's first message, else their number and each, as zigzag."""
    return b"\0" if indexes == (0,) else b"".join(map(_varint_bytes, (len(indexes), *indexes)))


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    found = 0
    for shift in range(0, 35, 7):
        if at >= len(data):
            raise CorruptDataError("the indexes of the message before the value are truncated")
        byte = data[at]
        at += 1
        found |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (found >> 1) ^ -(found & 1), at
    raise CorruptDataError("an index of the message before the value has more than 32 bits")


def _varint_bytes(number: int) -> bytes:
    left, found = number << 1, bytearray()
    while left > 0x7F:
        found.append(left & 0x7F | 0x80)
        left >>= 7
    found.append(left)
    return bytes(found)
