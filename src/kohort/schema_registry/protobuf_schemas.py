"""Protobuf schemas: from a registry's text to descriptors, by protoc in a process of its own, and within limits.

A registry has the text of a .proto file, or its serialized descriptor in Base64, which Confluent's client for Python
registers. Both are given to protoc, Google's own compiler, which grpcio-tools brings. It read 1 MiB of text in 0.8 s of
CPU, where a parser in Python took 1 s for 53 kB. It runs in another process, because schemas come from others. A schema
can't be used if protoc names a place in it, or exceeds a limit with it. Every other failure is this machine's.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from kohort.errors import CorruptDataError, InvalidInputError, RetriableError
from kohort.schema_registry.prefix import PREFIX_BYTES, UnusableSchemaError
from kohort.schema_registry.protobuf_files import KNOWN_FILES, is_built_in

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FileDescriptor
    from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto, FileDescriptorSet

Imports: TypeAlias = "tuple[tuple[str, str], ...]"
"""The files that a schema refers to: the name of each as `import` has it, and its text."""

PROTOC_CPU_S = 10
"""Seconds of CPU that protoc may take; 1 MiB takes 0.8. protoc ends then even if this process is gone."""
PROTOC_TIMEOUT_S = 30.0
"""How long to wait for protoc: three times its CPU, so that a schema fails it only on an overloaded machine."""
PROTOC_MEMORY_BYTES = 1024 * 1024 * 1024
"""Address space of protoc; Python with protoc in it takes a fifth of it."""
TEXT_BYTES_MAX = 1024 * 1024
"""Most bytes of a schema and the files that it refers to: those of one schema in a registry."""
SET_BYTES_MAX = 16 * TEXT_BYTES_MAX
"""Most bytes of what protoc makes of it."""
IMPORTS_MAX = 64
"""Most files that a schema refers to: each is a request to the registry."""
PARTS_MAX = 10_000
"""Most messages, fields, methods and values of enums in a schema."""
NAME_CHARACTERS_MAX = 1_000
"""Characters of the longest identifier: protoc and protobuf repeat a message's name in the name of each field."""
NAMES_BYTES_MAX = 4 * TEXT_BYTES_MAX
"""Most characters of all full names in a schema, of which protobuf keeps several copies."""
DESCRIPTOR_SHARE = 10
"""Bytes in memory for each byte of a serialized descriptor: measured were 5 to 9."""
PART_BYTES = 2_000
"""Bytes in memory for each message or field with its reader: measured were 2,400 and 400."""
STDERR_BYTES_MAX = 64 * 1024
"""Bytes that are read of what protoc says."""
INDEXES_MAX = 32
"""Most indexes before a value: protoc refuses messages that are nested deeper."""
_MAIN = "kohort-schema.proto"
_IMPORT_NAME = re.compile(r"(?:[A-Za-z0-9_+-][A-Za-z0-9_+.-]*/)*[A-Za-z0-9_+-][A-Za-z0-9_+.-]*\.proto")
_BASE64 = re.compile(r"[A-Za-z0-9+/\s]++=*+\s*+")
_LONG_NAME = re.compile(rb"(?<![A-Za-z0-9_])[A-Za-z0-9_]{%d}" % (NAME_CHARACTERS_MAX + 1))
_PROTOC = """
import runpy, sys
try:
    import resource
except ImportError:  # Windows
    resource = None
for name, bound in zip(("CORE", "CPU", "AS", "FSIZE"), map(int, sys.argv.pop(1).split(","))):
    if resource is not None:
        kind = getattr(resource, f"RLIMIT_{name}")
        bounds = [bound, *(given for given in resource.getrlimit(kind) if given != resource.RLIM_INFINITY)]
        try:
            resource.setrlimit(kind, (min(bounds), resource.getrlimit(kind)[1]))
        except (OSError, ValueError):  # macOS, which has no bound of memory
            pass
runpy.run_module("grpc_tools.protoc", run_name="__main__", alter_sys=True)
"""
"""protoc within limits: -c, because a function that runs between fork and exec is unsafe beside other threads."""
_LOG_LINE = re.compile(r"WARNING: |[IWEF]\d{4} ")
_MISSING = "Protobuf values need protobuf and grpcio-tools: pip install 'kohort[protobuf]'"


def check_installed() -> None:
    """Check that protobuf and protoc are installed.

    Raises:
        InvalidInputError: one of them is not installed; no schema is at fault.
    """
    if find_spec("grpc_tools") is None:  # it needs protobuf
        raise InvalidInputError(_MISSING)
    try:
        import_module("google.protobuf.descriptor_pb2")
    except ImportError:
        raise InvalidInputError(_MISSING) from None


def compile_protobuf(text: str, imports: Imports, name: str, *, needs_message: bool = True) -> ProtobufSchema:
    """Compile a Protobuf schema from its text, by protoc.

    Args:
        text: a .proto file, or its serialized descriptor in Base64.
        imports: the files that it refers to, directly or through others.
        name: names the schema in errors.
        needs_message: refuse a file without a message; others may import such a file, for its enums.

    Raises:
        UnusableSchemaError: protoc refuses it, or it is beyond a limit.
        InvalidInputError: a library is not installed.
        RetriableError: this machine can't run protoc, or ended it, or is too slow.
    """
    check_installed()
    imports = tuple((path, found) for path, found in imports if not is_built_in(path))
    _check_imports(text, imports, name)
    try:
        with tempfile.TemporaryDirectory(prefix="kohort-protoc-") as folder:
            files = _run_protoc(Path(folder), ((_MAIN, text), *imports), name)
    except OSError as error:
        raise RetriableError(f"protoc can't run for {name}: {error}") from None
    return ProtobufSchema(files, name, needs_message=needs_message)


def _check_imports(text: str, imports: Imports, name: str) -> None:
    if sum(len(found.encode(errors="replace")) for found in (text, *(found for _, found in imports))) > TEXT_BYTES_MAX:
        raise UnusableSchemaError(f"{name} has more than {TEXT_BYTES_MAX} bytes with the files that it refers to")
    paths = [path for path, _ in imports]
    if len(paths) > IMPORTS_MAX:
        raise UnusableSchemaError(f"{name} refers to more than {IMPORTS_MAX} files")
    for path in paths:
        if not _IMPORT_NAME.fullmatch(path) or len(path) > 200 or path == _MAIN:
            raise UnusableSchemaError(
                f"{name} refers to a file whose name is not like folder/file.proto: {path[:80]!r}"
            )
        if paths.count(path) > 1:
            raise UnusableSchemaError(f"{name} refers to two files of the name {path[:80]!r}")
        above = next((file for file in (*paths, _MAIN, *KNOWN_FILES) if path.startswith(f"{file}/")), None)
        if above is not None:  # writing it would fail as on a full disk, which is retried
            raise UnusableSchemaError(f"{name} refers to {path[:80]!r}, whose folder {above[:80]!r} is a file")


def _run_protoc(folder: Path, files: Sequence[tuple[str, str]], name: str) -> FileDescriptorSet:
    """Return all files of a schema, each after those that it imports, as protoc makes them.

    Raises:
        UnusableSchemaError: protoc refuses one of them, or exceeds a limit with it.
        RetriableError: protoc was ended from outside, failed for another reason, or had too little of the CPU.
        OSError: this machine fails.
    """
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    texts, serialized, made, said = folder / "texts", FileDescriptorSet(), folder / "made", folder / "said"
    texts.mkdir()
    imported: set[str] = set()
    for path, text in files:
        data = text.encode(errors="replace")
        found = _serialized(text, path)
        imported.update(found.dependency if found else (known for known in KNOWN_FILES if known in text))
        if found is not None:
            data = found.SerializeToString()
            serialized.file.append(found)
        if _LONG_NAME.search(data):
            raise UnusableSchemaError(f"{name} has a name of more than {NAME_CHARACTERS_MAX} characters")
        if found is None:
            _write(texts / path, data)
    if not imported.isdisjoint(KNOWN_FILES):
        for path in KNOWN_FILES.keys() - {path for path, _ in files}:
            _write(texts / path, KNOWN_FILES[path].encode())
    (folder / "serialized").write_bytes(serialized.SerializeToString())
    limits = (0, PROTOC_CPU_S, PROTOC_MEMORY_BYTES, SET_BYTES_MAX + 1)
    command = (
        # -P: the current folder may hold a module of the same name.
        *(sys.executable, "-P", "-c", _PROTOC, ",".join(map(str, limits)), f"-I{texts}"),
        *((f"--descriptor_set_in={folder / 'serialized'}",) if serialized.file else ()),
        *("--include_imports", f"--descriptor_set_out={made}", _MAIN),
    )
    try:
        with said.open("wb") as stderr:
            code = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                timeout=PROTOC_TIMEOUT_S,
                check=False,
                env=_environment(),
            ).returncode
    except subprocess.TimeoutExpired:
        raise RetriableError(f"protoc took longer than {PROTOC_TIMEOUT_S:g} s for {name} on this machine") from None
    if made.exists() and made.stat().st_size > SET_BYTES_MAX:
        raise UnusableSchemaError(f"{name} makes more than {SET_BYTES_MAX} bytes of descriptors")
    if code == 0 and made.exists():
        return FileDescriptorSet.FromString(made.read_bytes())
    with said.open("rb") as stderr:
        lines = stderr.read(STDERR_BYTES_MAX).decode(errors="replace").replace(f"{texts}{os.sep}", "").splitlines()
    reasons = [line for line in lines if line.strip() and not _LOG_LINE.match(line)]
    if any(line.startswith(f"{path}:") for line in reasons for path, _ in files):
        raise UnusableSchemaError(f"protoc refuses {name}: {'; '.join(reasons[:3])[:300]}")
    if code in _ENDED_BY_SCHEMA:
        raise UnusableSchemaError(f"protoc can't process {name}: {_ENDED_BY_SCHEMA[code]}")
    raise RetriableError(f"protoc failed for {name} with {code}: {'; '.join(reasons[-3:])[:300]}")


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _ended_by_schema() -> dict[int, str]:
    """Return the exit codes of protoc for which the schema is to blame, with their meaning.

    They are negated numbers of signals, by which protoc never ends on Windows.
    """
    reasons = {
        "SIGXCPU": f"it takes more than {PROTOC_CPU_S} s of CPU",
        "SIGABRT": "it aborts, as for want of memory",
        "SIGSEGV": "it crashes",
    }
    return {-getattr(signal, name): reason for name, reason in reasons.items() if hasattr(signal, name)}


_ENDED_BY_SCHEMA = _ended_by_schema()


def _environment() -> dict[str, str]:
    """Return environment variables for protoc's process, so that it finds packages in this process's `sys.path`."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(part for part in sys.path if part)}


def _serialized(text: str, path: str) -> FileDescriptorProto | None:
    """Return the serialized descriptor in a Base64 text, renamed to `path`; None if the text is .proto source."""
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
        counted_bytes: bytes that it takes in memory with its readers, by the size of its descriptors.
    """

    file: FileDescriptor

    def __init__(self, files: FileDescriptorSet, name: str, *, needs_message: bool = True) -> None:
        """Build the descriptors.

        Args:
            files: all files, each after those that it imports; the last is the schema's.
            name: names the schema in errors.
            needs_message: refuse a schema without a message.

        Raises:
            UnusableSchemaError: it has no message, too many parts, or descriptors that contradict each other.
        """
        from google.protobuf.descriptor_pool import DescriptorPool

        self.set, self.name = files, name
        if not files.file or (needs_message and not files.file[-1].message_type):
            raise UnusableSchemaError(f"{name} has no message")
        if any(isinstance(file.name, bytes) for file in files.file):  # protobuf has bytes where text is no UTF-8
            raise UnusableSchemaError(f"{name} is no Protobuf schema: a file's name is no text")
        count, characters = self._check_parts()
        self.counted_bytes = DESCRIPTOR_SHARE * files.ByteSize() + characters + PART_BYTES * count
        self._groups = frozenset(_groups(files.file[-1]))
        pool = DescriptorPool()
        try:
            for file in files.file:
                pool.Add(file)
            self.file = pool.FindFileByName(files.file[-1].name)
        except (TypeError, ValueError, KeyError) as error:
            raise UnusableSchemaError(f"{name} is no Protobuf schema: {str(error)[:200]}") from None
        self._inside: dict[tuple[str, bool], tuple[Descriptor, ...]] = {}

    def _check_parts(self) -> tuple[int, int]:
        """Check how many parts the schema has (messages, fields, methods, values of enums), and how long names are.

        Returns:
            The number of parts, and the number of characters of all full names.

        Raises:
            UnusableSchemaError: there are too many parts or characters, or a map's entries have other fields than key
                and value.
        """
        count = total = 0
        for part, outer in _parts(self.set.file):
            count += 1
            total += outer + len(part.name)
            if count > PARTS_MAX:
                raise UnusableSchemaError(
                    f"{self.name} has more than {PARTS_MAX} messages, fields, methods and values of enums"
                )
            if len(part.name) > NAME_CHARACTERS_MAX:
                raise UnusableSchemaError(f"{self.name} has a name of more than {NAME_CHARACTERS_MAX} characters")
            if total > NAMES_BYTES_MAX:
                raise UnusableSchemaError(f"{self.name} has full names of more than {NAMES_BYTES_MAX} characters")
            is_entry = part.DESCRIPTOR.name == "DescriptorProto" and part.options.map_entry
            if is_entry and [field.name for field in part.field] != ["key", "value"]:
                raise UnusableSchemaError(f"{self.name} has a map whose entries are no key and value")
        return count, total

    @classmethod
    def from_descriptor_set(cls, text: str, name: str) -> ProtobufSchema:
        """Return the schema of a serialized FileDescriptorSet in Base64, as `protoc --include_imports` makes it.

        Raises:
            InvalidInputError: the text is no FileDescriptorSet, or a library is not installed.
        """
        try:
            from google.protobuf.descriptor_pb2 import FileDescriptorSet
            from google.protobuf.message import DecodeError
        except ImportError:
            raise InvalidInputError(_MISSING) from None
        try:
            return cls(FileDescriptorSet.FromString(base64.b64decode(text)), name)
        except (binascii.Error, DecodeError, ValueError):
            raise UnusableSchemaError(f"{name} is no descriptor set of Protobuf in Base64") from None

    def descriptor_set_text(self) -> str:
        """Return all files as Base64, which `from_descriptor_set` reads."""
        return base64.b64encode(self.set.SerializeToString(deterministic=True)).decode()

    def file_descriptor_text(self) -> str:
        """Return the schema's file as Base64, as Confluent's client for Python registers it."""
        return base64.b64encode(self.set.file[-1].SerializeToString(deterministic=True)).decode()

    def identity_text(self) -> str:
        """Return a text that two schemas share if they differ at most in comments and in the files' names."""
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
            InvalidInputError: the file has no message of this name.
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
            CorruptDataError: there is no such message, or clients disagree on it: those in Python count the messages
                that maps and groups make, those in Java do not.
        """
        with_entries, without = (
            self._message_at_indexes(indexes, counts_generated=True),
            self._message_at_indexes(indexes, counts_generated=False),
        )
        if with_entries is not None and with_entries.GetOptions().map_entry:
            with_entries = None
        if with_entries is not None and without is not None and with_entries.full_name != without.full_name:
            raise CorruptDataError(
                f"{self.name}: the indexes {list(indexes)} are {with_entries.full_name} for clients in Python and "
                f"{without.full_name} for those in Java, because of a map or group before it"
            )
        found = with_entries or without
        if found is None:
            raise CorruptDataError(f"{self.name} has no message at the indexes {list(indexes)}")
        return found

    def _message_at_indexes(self, indexes: tuple[int, ...], *, counts_generated: bool) -> Descriptor | None:
        """Return the message at these indexes; None if there is none.

        Args:
            indexes: one index for each level of nesting, from the file's own messages inwards.
            counts_generated: whether to count the messages that protoc generates for maps and groups.
        """
        found: Descriptor | None = None
        for index in indexes:
            inside = self._messages_inside(found, counts_generated=counts_generated)
            if index >= len(inside):
                return None
            found = inside[index]
        return found

    def _messages_inside(self, outer: Descriptor | None, *, counts_generated: bool) -> tuple[Descriptor, ...]:
        """Return the messages directly inside a message, or inside the file (None); cached.

        `counts_generated` includes those that protoc generated for maps and groups.
        """
        key = ("" if outer is None else outer.full_name, counts_generated)
        found = self._inside.get(key)
        if found is None:
            inside = self.file.message_types_by_name.values() if outer is None else outer.nested_types
            found = self._inside[key] = tuple(
                message for message in inside if counts_generated or not self._is_generated(message)
            )
        return found

    def _is_generated(self, message: Descriptor) -> bool:
        """Return whether protoc generated the message for a map or a group."""
        return bool(message.GetOptions().map_entry) or message.full_name in self._groups

    def indexes_of(self, message: Descriptor) -> tuple[int, ...]:
        """Return the indexes of a message of the file.

        Raises:
            InvalidInputError: clients in Python and in Java would take other indexes for it.
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
        if self._message_at_indexes(indexes, counts_generated=False) != message:
            raise InvalidInputError(
                f"{self.name}: clients in Java count {message.full_name} otherwise than those in Python, because of a "
                "map or group before it: write a message of the file's first level"
            )
        return indexes


def _json_name(name: str) -> str:
    """Return a field's name in JSON, if the schema gives no other: with capitals for underscores."""
    return re.sub(r"_+(.?)", lambda found: found[1].upper(), name)


def _groups(file: FileDescriptorProto) -> Iterator[str]:
    """Yield the full names of the messages that protoc generates for groups; only proto2 has groups."""
    if file.syntax in ("", "proto2"):
        for part, _ in _parts([file]):
            if part.DESCRIPTOR.name == "FieldDescriptorProto" and part.type == part.TYPE_GROUP:
                yield part.type_name.removeprefix(".")


def _parts(files: Iterable[FileDescriptorProto]) -> Iterator[tuple[Any, int]]:
    """Yield the messages, fields, methods, enums and their values of files that are not built in.

    With each comes the number of characters before its own name in its full name.
    """
    for file in files:
        if is_built_in(file.name):
            continue
        package = len(file.package) + 1
        left: list[tuple[DescriptorProto, int]] = [(message, package) for message in file.message_type]
        enums = [(enum, package) for enum in file.enum_type]
        yield from ((field, package) for field in file.extension)
        for service in file.service:
            yield service, package
            yield from ((method, package + len(service.name) + 1) for method in service.method)
        while left:
            message, outer = left.pop()
            inner = outer + len(message.name) + 1
            yield message, outer
            for found in (message.field, message.extension, message.oneof_decl):
                yield from ((part, inner) for part in found)
            left += [(nested, inner) for nested in message.nested_type]
            enums += [(enum, inner) for enum in message.enum_type]
        for enum, outer in enums:
            yield enum, outer
            yield from ((value, outer) for value in enum.value)


# -- The indexes before a value


def read_indexes(data: bytes) -> tuple[tuple[int, ...], int]:
    """Return the message's indexes, which follow the schema id, and the position at which the message begins.

    Raises:
        CorruptDataError: the indexes are truncated or invalid.
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


def encode_indexes(indexes: tuple[int, ...]) -> bytes:
    """Encode message indexes: one zero byte for the file's first message, else count and indexes as zigzag varints."""
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
