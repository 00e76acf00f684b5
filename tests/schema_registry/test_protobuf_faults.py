"""Protobuf where something is wrong: the machine that runs protoc, hostile schemas, and values that would be lost."""

from __future__ import annotations

import base64
import resource
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from google.protobuf import descriptor_pb2

from kohort import SchemaReference, SchemaRegistry
from kohort.errors import CorruptDataError, InvalidInputError, RetriableError
from kohort.schema_registry import protobuf_schemas, protobuf_values, registry
from kohort.schema_registry.embedded import EmbeddedSchemaRegistry
from kohort.schema_registry.prefix import UnusableSchemaError
from kohort.schema_registry.protobuf_schemas import _BASE64, ProtobufSchema, compile_protobuf, encode_indexes
from kohort.schema_registry.protobuf_values import MessageReaders, protobuf_reader, protobuf_writer
from tests.schema_registry.raw_registry import http_answer, raw_registry

PREFIX = b"\0\0\0\0\1"
A = 'syntax = "proto3"; package p; message A { int32 a = 1; }'


@pytest.fixture
def embedded() -> Iterator[EmbeddedSchemaRegistry]:
    with EmbeddedSchemaRegistry() as running:
        yield running


def reader_of(text: str) -> Any:
    return protobuf_reader(compile_protobuf(text, (), "the schema 1"), 1 << 22)


# -- Faults of the machine


@contextmanager
def broken_machine(how: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        if how == "no library":
            patch.setitem(sys.modules, "grpc_tools", None)
        elif how == "no interpreter":
            patch.setattr(sys, "executable", "/nothing/python")
        elif how == "another program":
            patch.setattr(sys, "executable", "/bin/false")
        elif how == "protoc killed":
            patch.setattr(protobuf_schemas, "_PROTOC", "import os; os.kill(os.getpid(), 9)")
        elif how == "out of time":
            patch.setattr(protobuf_schemas, "PROTOC_TIMEOUT_S", 0.0)
        elif how == "no temporary folder":
            patch.setattr(tempfile, "tempdir", "/nothing")
        else:
            assert how == "disk full"
            patch.setattr(
                protobuf_schemas,
                "_PROTOC",
                f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, {resource.RLIM_INFINITY}))\n"
                + protobuf_schemas._PROTOC,
            )
        yield


FAULTS = (
    "no library", "no interpreter", "another program", "protoc killed", "out of time", "no temporary folder",
    "disk full",
)  # fmt: skip


@pytest.mark.parametrize("how", FAULTS)
def test_fault_of_the_machine_makes_no_schema_bad(
    how: str, embedded: EmbeddedSchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "FAILURE_KEPT_S", 0.0)
    client = SchemaRegistry(embedded.url)
    data = SchemaRegistry(embedded.url).serializer("a-value", A, kind="PROTOBUF")({"a": 7})
    wanted = InvalidInputError if how == "no library" else RetriableError
    with broken_machine(how, monkeypatch):
        for _ in range(2):
            with pytest.raises(wanted) as failed:
                client.deserialize(data)
            assert not isinstance(failed.value, UnusableSchemaError)
        client.prepare([data])
        with pytest.raises(wanted, match=r"pip install 'kohort\[protobuf\]'" if how == "no library" else "protoc"):
            client.deserialize_prepared(data)
    assert client.deserialize(data) == {"a": 7}
    assert client.deserialize_prepared(data) == {"a": 7}


def test_registry_names_the_extra_that_is_not_installed(
    embedded: EmbeddedSchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "grpc_tools", None)
    with pytest.raises(InvalidInputError, match=r"pip install 'kohort\[protobuf\]'"):
        SchemaRegistry(embedded.url).register("b-value", A + " message B {}", "PROTOBUF")


def test_machine_that_fails_is_left_alone_for_a_second(
    embedded: EmbeddedSchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = SchemaRegistry(embedded.url)
    data = SchemaRegistry(embedded.url).serializer("a-value", A, kind="PROTOBUF")({"a": 7})
    monkeypatch.setattr(registry, "FAILURE_KEPT_S", 1000.0)
    with broken_machine("another program", monkeypatch), pytest.raises(RetriableError):
        client.deserialize(data)
    with pytest.raises(RetriableError, match="protoc failed"):
        client.deserialize(data)


@pytest.mark.parametrize("end", ["SIGSEGV", "SIGABRT", "SIGXCPU"])
def test_schema_that_ends_protoc_is_unusable(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        protobuf_schemas,
        "_PROTOC",
        "import os, resource, signal; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); "
        f"os.kill(os.getpid(), signal.{end})",
    )
    with pytest.raises(UnusableSchemaError, match="protoc can't process the schema 1"):
        compile_protobuf(A, (), "the schema 1")


def test_protoc_has_limits_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits hold when this process is gone, and a schema that needs more is unusable."""
    wide = 'syntax = "proto3"; message M { reserved ' + ",".join(str(2 * at + 1) for at in range(60_000)) + "; }"
    monkeypatch.setattr(protobuf_schemas, "PROTOC_CPU_S", 1)
    with pytest.raises(UnusableSchemaError, match="s of CPU"):
        compile_protobuf(wide, (), "the schema 1")
    monkeypatch.undo()
    monkeypatch.setattr(protobuf_schemas, "SET_BYTES_MAX", 100)
    fields = " ".join(f"int32 f{at} = {at + 1};" for at in range(99))
    with pytest.raises(UnusableSchemaError, match="makes more than 100 bytes"):
        compile_protobuf(f'syntax = "proto3"; message M {{{fields}}}', (), "the schema 1")


# -- Hostile schemas


def test_text_that_is_nearly_base64_is_found_out_in_one_pass() -> None:
    """A pattern that goes back would take an hour of CPU, holding the interpreter's lock."""
    for text in (" " * (1 << 20) + ";", "A" * (1 << 20) + ";", "A" + "=" * (1 << 20) + ";"):
        assert _BASE64.fullmatch(text) is None


LONG = "L" * 1001


@pytest.mark.parametrize(
    "text",
    [
        f'syntax = "proto3"; message {LONG} {{ int32 a = 1; int32 a = 2; }}',
        f'syntax = "proto3"; message M {{}} service {LONG} {{ rpc A(M) returns (M); }}',
        f'syntax = "proto3"; package {LONG}; message M {{}}',
        base64.b64encode(
            descriptor_pb2.FileDescriptorProto(
                name="a", message_type=[descriptor_pb2.DescriptorProto(name=LONG)]
            ).SerializeToString()
        ).decode(),
    ],
)
def test_long_name_is_refused_before_protoc(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nothing/python")
    with pytest.raises(UnusableSchemaError, match="a name of more than 1000 characters"):
        compile_protobuf(text, (), "the schema 1")


def test_names_that_multiply_are_refused() -> None:
    """Each name is short, and the full name of a field has those of all messages around it."""
    outer = "".join(f"message {'L' * 1000} {{" for _ in range(20))
    fields = "".join(f"bool a{number} = {number + 1};" for number in range(300))
    with pytest.raises(UnusableSchemaError, match="full names of more than 4194304 characters"):
        compile_protobuf(f'syntax = "proto3"; {outer} {fields} {"}" * 20}', (), "the schema 1")
    methods = "".join(f"rpc a{number} (M) returns (M);" for number in range(10_000))
    with pytest.raises(UnusableSchemaError, match="more than 10000 messages, fields, methods"):
        compile_protobuf(f'syntax = "proto3"; message M {{}} service S {{ {methods} }}', (), "the schema 1")
    file = descriptor_pb2.FileDescriptorProto(name="a", message_type=[descriptor_pb2.DescriptorProto(name=LONG)])
    with pytest.raises(UnusableSchemaError, match="a name of more than 1000 characters"):
        ProtobufSchema(descriptor_pb2.FileDescriptorSet(file=[file]), "it")


def test_index_that_names_no_message_costs_no_list(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = compile_protobuf(
        'syntax = "proto3"; message A { message B {} message C {} map<int32, B> m = 1; }', (), "the schema 1"
    )
    read = protobuf_reader(schema, 1 << 22)
    for indexes in ((9,), (0, 9)):
        with pytest.raises(CorruptDataError, match="has no message"):
            read(PREFIX + encode_indexes(indexes))
    monkeypatch.setattr(schema, "file", None)  # it is not asked again
    for indexes in ((9,), (0, 9)):
        with pytest.raises(CorruptDataError, match="has no message"):
            read(PREFIX + encode_indexes(indexes))


def test_group_counts_as_an_index_for_some_clients_only() -> None:
    text = (
        'syntax = "proto2"; message M { optional group G = 1 { optional int32 x = 1; }'
        " message N { optional int32 y = 1; } }"
    )
    schema = compile_protobuf(text, (), "the schema 1")
    with pytest.raises(CorruptDataError, match=r"\[0, 0\] are M.G for clients in Python and M.N for those in Java"):
        schema.message_at((0, 0))
    with pytest.raises(InvalidInputError, match="first level"):
        protobuf_writer(schema, 1, "M.N")
    delimited = compile_protobuf(
        'edition = "2023"; message M { N n = 1 [features.message_encoding = DELIMITED]; message N { int32 y = 1; } }',
        (),
        "the schema 1",
    )
    assert delimited.message_at((0, 0)).full_name == "M.N"


# -- Readers


HALF = (
    'syntax = "proto2"; message N { optional string a = 1 [default = "\\377"]; optional int32 z = 2; }'
    " message M { optional int32 q = 1; optional N n = 2; optional int32 w = 3; } message O { optional int32 o = 1; }"
)


def test_message_that_can_not_be_read_is_refused_each_time() -> None:
    read = reader_of(HALF)
    for body in (b"\x08\7\x18\x09", b"\x08\7", b"\x12\2\x10\7"):
        with pytest.raises(CorruptDataError, match="the default of a is not UTF-8"):
            read(PREFIX + encode_indexes((1,)) + body)
    assert read(PREFIX + encode_indexes((2,)) + b"\x08\1") == {"o": 1}


def test_chain_of_messages_is_read() -> None:
    count = 3_000
    messages = "".join(f"message A{at} {{ A{at + 1} f = 1; int32 v = 2; }}" for at in range(count))
    text = f'syntax = "proto3"; {messages} message A{count} {{ int32 v = 2; }}'
    read = reader_of(text)
    assert read(PREFIX + b"\0\x0a\2\x10\5") == {"f": {"f": None, "v": 5}, "v": 0}
    assert protobuf_writer(compile_protobuf(text, (), "the schema"), 1)({"f": {"v": 5}}) == PREFIX + b"\0\x0a\2\x10\5"


class _PausedReaders(MessageReaders):
    """Readers whose first field waits for another thread."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.others = threading.Event(), threading.Event()

    def field_converter(self, field: Any) -> Any:
        if not self.inside.is_set():
            self.inside.set()
            self.others.wait(0.2)
        return super().field_converter(field)


def test_threads_share_no_half_made_reader() -> None:
    schema = compile_protobuf('syntax = "proto3"; message M { int32 a = 1; int32 b = 2; }', (), "the schema 1")
    message, readers, found = schema.message_named("M"), _PausedReaders(), []

    def take() -> None:
        found.append(sorted(readers.message_converter(message)._convert))
        readers.others.set()

    first = threading.Thread(target=take)
    first.start()
    readers.inside.wait()
    take()
    first.join()
    assert found == [[1, 2], [1, 2]]


@pytest.mark.parametrize(
    "text",
    [
        'syntax = "proto2"; message M { optional string s = 1; FIELDS }',
        'edition = "2023"; option features.utf8_validation = NONE; message M { string s = 1; FIELDS }',
    ],
)
def test_text_that_is_not_utf8_is_bad_in_every_syntax(text: str) -> None:
    read = reader_of(
        text.replace("FIELDS", "repeated string r = 2; map<string, int32> m = 3; map<int32, string> v = 4;")
    )
    for body in (b"\x0a\1\xff", b"\x12\1\xff", b"\x1a\5\x0a\1\xff\x10\1", b"\x22\5\x08\1\x12\1\xff"):
        with pytest.raises(CorruptDataError, match="no value of the message M"):
            read(PREFIX + b"\0" + body)
    good = b"\x0a\1a\x12\1b\x1a\5\x0a\1c\x10\1\x22\5\x08\1\x12\1d"
    assert read(PREFIX + b"\0" + good) == {"s": "a", "r": ["b"], "m": {"c": 1}, "v": {1: "d"}}


def test_messages_alone_count_towards_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protobuf_values, "MESSAGES_MAX", 5_000)
    wide = "".join(f"repeated int32 f{number} = {number};" for number in range(1, 401))
    text = (
        'syntax = "proto3"; import "google/protobuf/duration.proto"; message M { repeated N n = 1; repeated E e = 2;'
        f" map<int32, N> m = 3; repeated google.protobuf.Duration d = 4; repeated W w = 5; }} message N {{}}"
        f" enum E {{ Z = 0; }} message W {{ {wide} }}"
    )
    read = protobuf_reader(compile_protobuf(text, (), "the schema 1"), 1 << 28)
    assert len(read(PREFIX + b"\0" + b"\x0a\0" * (4_999))["n"]) == 4_999
    assert len(read(PREFIX + b"\0" + b"\x10\0" * (5_001))["e"]) == 5_001
    for body in (b"\x0a\0" * 5_000, b"\x22\0" * 5_000, b"\x2a\0" * 100):
        with pytest.raises(CorruptDataError, match="more than 5000 messages"):
            read(PREFIX + b"\0" + body)


# -- Oneofs


def test_two_members_of_a_oneof_are_not_written() -> None:
    text = (
        'syntax = "proto3"; message M { oneof o { string a = 1; string b = 2; M m = 3; } optional int32 x = 4;'
        " optional int32 y = 5; repeated M more = 6; }"
    )
    write, read = protobuf_writer(compile_protobuf(text, (), "the schema"), 1), reader_of(text)
    for value in ({"a": "x", "b": "y"}, {"b": "", "m": {}}, {"more": [{"a": "", "b": ""}]}):
        with pytest.raises(InvalidInputError, match="are of the oneof o: one can be set"):
            write(value)
    value = {"a": None, "b": "", "m": None, "x": 0, "y": 0, "more": []}
    assert read(write(value)) == value


def test_member_of_a_oneof_that_is_not_set_is_none() -> None:
    text = 'syntax = "proto2"; message M { oneof o { string b = 8; int32 a = 7 [default = 5]; } }'
    write, read = protobuf_writer(compile_protobuf(text, (), "the schema"), 1), reader_of(text)
    assert read(write({})) == {"b": None, "a": None}
    assert read(write(read(write({"b": "z"})))) == {"b": "z", "a": None}


@pytest.mark.parametrize(
    "value",
    [
        {"f": 1e300},
        {"f": -3.5e38},
        {"f": Decimal("sNaN")},
        {"w": 1e300},
        {"d": timedelta.max},
        {"d": timedelta.min},
        {"i": Decimal("sNaN")},
        {"i": Decimal("Infinity")},
    ],
)
def test_value_that_would_change_is_not_written(value: Any) -> None:
    text = (
        'syntax = "proto3"; import "google/protobuf/duration.proto"; import "google/protobuf/wrappers.proto";'
        " message M { float f = 1; google.protobuf.Duration d = 2; int32 i = 3; google.protobuf.FloatValue w = 4;"
        " google.protobuf.DoubleValue x = 5; }"
    )
    write, read = protobuf_writer(compile_protobuf(text, (), "the schema"), 1), reader_of(text)
    with pytest.raises(InvalidInputError, match="not of the schema"):
        write(value)
    kept = {"f": float("-inf"), "d": timedelta(days=3_652_500), "i": 0, "w": 1.5, "x": 1.5}
    assert read(write({**kept, "x": Decimal("1.5")})) == kept


# -- The registry


def test_registry_answers_when_schemas_are_too_deep_to_compare(embedded: EmbeddedSchemaRegistry) -> None:
    messages = "".join(f"message A{at} {{ A{at + 1} f = 1; }}" for at in range(1_000))
    text, client = f'syntax = "proto3"; {messages} message A1000 {{}}', SchemaRegistry(embedded.url)
    client.register("a-value", text, "PROTOBUF")
    with pytest.raises(InvalidInputError, match="too deep to be compared"):
        client.register("a-value", text + " message Z {}", "PROTOBUF")


def test_references_to_deleted_versions_are_read() -> None:
    answer = {"schema": A, "schemaType": "PROTOBUF", "id": 1, "version": 1,
              "references": [{"name": "x.proto", "subject": "s", "version": 1}]}  # fmt: skip
    with raw_registry(http_answer(answer)) as server:
        SchemaRegistry(server.url).schema(1)
        assert server.requests[-1] == "GET /subjects/s/versions/1?deleted=true HTTP/1.1"


def test_reference_that_the_registry_refuses_makes_the_record_bad() -> None:
    answer = http_answer({"error_code": 42202, "message": "The specified version '0' is not valid"}, "422 Refused")
    with raw_registry(answer) as server:
        references = [SchemaReference("x.proto", "s", 0)]
        with pytest.raises(UnusableSchemaError, match="refers to version 0 of s: .* 42"):
            SchemaRegistry(server.url).serializer("s", A, kind="PROTOBUF", references=references)
    with raw_registry(http_answer(b"<html>", "302 Found")) as server:
        with pytest.raises(InvalidInputError) as failed:
            SchemaRegistry(server.url).serializer("s", A, kind="PROTOBUF", references=references)
        assert not isinstance(failed.value, UnusableSchemaError)


def test_schemas_with_large_descriptors_leave_the_cache(
    embedded: EmbeddedSchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A short text may import the whole of descriptor.proto."""
    text = 'syntax = "proto3"; import "google/protobuf/descriptor.proto"; message A {{ int32 a{0} = 1; }}'
    writes = [
        SchemaRegistry(embedded.url).serializer(f"{number}-value", text.format(number), kind="PROTOBUF")
        for number in range(3)
    ]
    monkeypatch.setattr(registry, "CACHE_BYTES_MAX", 35_000)
    client = SchemaRegistry(embedded.url)
    for number, write in enumerate(writes):
        assert client.deserialize(write({f"a{number}": 7})) == {f"a{number}": 7}
    with pytest.raises(RetriableError, match="not in memory"):
        client.deserialize_prepared(writes[0]({}))
    assert client.deserialize_prepared(writes[2]({})) == {"a2": 0}
