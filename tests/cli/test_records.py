"""Records in by `kohort produce` and out by `kohort consume`, in every format."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.ipc
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.support.processes import KOHORT
from tests.support.waiting import until

from kohort import Admin, Broker, Consumer, Producer, TopicPartition
from kohort.cli.app import run
from kohort.cli.output import count_with_noun
from kohort.cli.produce import _from_json
from kohort.client.admin.values import NewTopic
from kohort.errors import InvalidInputError


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    config = {"group.initial.rebalance.delay.ms": 0, "num.partitions": 2}
    with Broker(tmp_path_factory.mktemp("cli-records"), config) as broker:
        yield broker.bootstrap_servers


@pytest.fixture
def topic(servers: str) -> str:
    name = f"records-{uuid.uuid4().hex[:8]}"
    with Admin(servers) as admin:
        admin.create_topics([NewTopic(name)]).all()
    return name


@pytest.fixture
def kohort(
    servers: str, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, bytes, str]]:
    def command(*args: str, stdin: bytes = b"") -> tuple[int, bytes, str]:
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(stdin)))
        capfdbinary.readouterr()
        code = run([*args, "--bootstrap-server", servers])
        captured = capfdbinary.readouterr()
        return code, captured.out, captured.err.decode()

    return command


Kohort = Callable[..., tuple[int, bytes, str]]
ALL = ("--from-beginning", "--until-end")


def test_text_in_and_out(kohort: Kohort, topic: str) -> None:
    code, _, reported = kohort("produce", topic, "--key-separator", ":", stdin=b"a:one\nb:two\nc:three\n")
    assert code == 0
    assert "3 records" in reported
    code, out, _ = kohort("consume", topic, *ALL, "--print-key")
    assert code == 0
    assert sorted(out.splitlines()) == [b"a\tone", b"b\ttwo", b"c\tthree"]


def test_json_round_trip(kohort: Kohort, topic: str) -> None:
    records = [
        {"key": "k", "value": "text", "headers": [{"key": "h", "value": "x"}]},
        {"key": None, "value": {"base64": "//79"}},
        {"value": {"nested": [1, 2]}},
        {"key": "gone", "value": None},
    ]
    lines = b"".join(json.dumps(record).encode() + b"\n" for record in records)
    assert kohort("produce", topic, "--format", "json", "--compression", "zstd", stdin=lines)[0] == 0
    _, out, _ = kohort("consume", topic, *ALL, "--format", "json")
    rows = [json.loads(line) for line in out.splitlines()]
    by_key = {row["key"]: row for row in rows if row["key"]}
    assert by_key["k"]["value"] == "text"
    assert by_key["k"]["headers"] == [{"key": "h", "value": "x"}]
    assert by_key["gone"]["value"] is None
    assert {"base64": "//79"} in [row["value"] for row in rows]
    assert '{"nested": [1, 2]}' in [row["value"] for row in rows]


def test_columns_out(kohort: Kohort, topic: str, tmp_path: Path) -> None:
    source = tmp_path / "lines.txt"
    source.write_bytes(b"".join(b"value %d\n" % number for number in range(2000)))
    assert kohort("produce", topic, str(source))[0] == 0
    file = tmp_path / "out.parquet"
    assert kohort("consume", topic, *ALL, "--format", "parquet", "--output", str(file))[0] == 0
    table = pyarrow.parquet.read_table(file)
    assert sorted(table.column("value").to_pylist()) == sorted(source.read_bytes().splitlines())
    _, out, _ = kohort("consume", topic, *ALL, "--format", "arrow")
    assert pyarrow.ipc.open_stream(out).read_all().num_rows == 2000


def test_nothing_there_is_a_file_without_rows(kohort: Kohort, topic: str, tmp_path: Path) -> None:
    file = tmp_path / "empty.parquet"
    stop = ("--from-beginning", "--idle-timeout", "300")
    assert kohort("consume", topic, *stop, "--format", "parquet", "--output", str(file))[0] == 0
    assert pyarrow.parquet.read_table(file).num_rows == 0


def test_group_continues_where_it_stopped(kohort: Kohort, topic: str) -> None:
    kohort("produce", topic, "--partition", "0", stdin=b"1\n2\n3\n4\n5\n")
    group = ("--group", f"{topic}-group", "--from-beginning")
    assert kohort("consume", topic, *group, "--max-messages", "2")[1] == b"1\n2\n"
    assert kohort("consume", topic, *group, "--until-end")[1] == b"3\n4\n5\n"


def test_member_without_partitions_ends_when_its_group_has_read_all(servers: str, topic: str, tmp_path: Path) -> None:
    """With `--until-end` it waited for ever."""
    with Admin(servers) as admin, Producer(servers) as producer:
        admin.create_topics([NewTopic(f"{topic}-one", 1)]).all()
        producer.send(f"{topic}-one", b"1")
    config = tmp_path / "client.properties"
    config.write_text("group.protocol=consumer\n")
    command = (*KOHORT, "consume", f"{topic}-one", "--bootstrap-server", servers, "--group", topic)
    stop = ("--from-beginning", "--until-end", "--command-config", str(config))
    with Consumer(
        servers, group_id=topic, group_protocol="consumer", auto_offset_reset="earliest", enable_auto_commit=False
    ) as owner:
        owner.subscribe([f"{topic}-one"])
        assert len(owner.poll(30_000)) == 1
        with subprocess.Popen([*command, *stop], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as waiting:
            with Admin(servers) as admin:
                until(
                    lambda: len(admin.describe_consumer_groups([topic]).all()[topic].members) == 2,
                    "both are members",
                    60,
                )
            owner.poll(2_500)
            assert waiting.poll() is None
            owner.commit()
            out, reported = waiting.communicate(timeout=60)
    assert (waiting.returncode, out) == (0, b"")
    assert b"0 records" in reported


def test_unknown_topic_is_reported(kohort: Kohort) -> None:
    code, _, reported = kohort("consume", "never-made")
    assert code == 1
    assert "never-made" in reported


def test_bad_lines_are_reported(kohort: Kohort, topic: str) -> None:
    code, _, reported = kohort("produce", topic, "--format", "json", stdin=b'{"value": "ok"}\nnonsense\n')
    assert code == 1
    assert "line 2" in reported
    code, _, reported = kohort("produce", topic, "--key-separator", ":", stdin=b"no separator\n")
    assert code == 1
    assert "line 1" in reported


def test_no_lines_are_no_records(kohort: Kohort, topic: str) -> None:
    for format in ("text", "json"):
        code, out, reported = kohort("produce", topic, "--format", format, stdin=b"")
        assert (code, out, reported) == (0, b"", "0 records\n")
    assert kohort("produce", topic, stdin=b"one\n")[2] == "1 record\n"


def test_json_is_a_format_of_records_too(kohort: Kohort, topic: str) -> None:
    kohort("produce", topic, stdin=b"one\n")
    code, out, _ = kohort("consume", topic, *ALL, "--json")
    assert (code, json.loads(out)["value"]) == (0, "one")
    assert kohort("consume", topic, *ALL, "--json", "--format", "json")[1] == out


FIRST_YEAR_10000_MS = 253_402_300_800_000
contents = st.none() | st.binary(max_size=40) | st.text(max_size=20).map(str.encode)
records = st.fixed_dictionaries(
    {
        "key": contents,
        "value": contents | st.sampled_from([b'{"base64": "AA=="}', b"null", b"1.0", b'"', b"a\nb\r\n"]),
        "headers": st.lists(st.tuples(st.sampled_from(["h", "", "é\n"]), contents), max_size=3),
        "timestamp_ms": st.sampled_from([0, 1, FIRST_YEAR_10000_MS - 1, FIRST_YEAR_10000_MS, 2**63 // 1000 - 1])
        | st.integers(0, 2 * FIRST_YEAR_10000_MS),
        "partition": st.integers(0, 1),
    }
)


def read_all(servers: str, topic: str) -> list[tuple[Any, ...]]:
    """The records of both partitions, as they can be compared."""
    partitions = [TopicPartition(topic, number) for number in range(2)]
    with Consumer(servers) as consumer:
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        ends = consumer.end_offsets(partitions)
        found: list[Any] = []
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            found += consumer.poll(1000)
    return sorted(
        (record.partition, record.offset, record.timestamp, record.key, record.value, record.headers)
        for record in found
    )


@settings(
    max_examples=20, deadline=None, phases=[Phase.generate], suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(sent=st.lists(records, min_size=1, max_size=40))
def test_json_out_and_in_again_is_the_same_record(kohort: Kohort, servers: str, sent: list[dict[str, Any]]) -> None:
    """Null, binary and empty keys and values, repeated and null headers, times in and after the year 9999."""
    source, copy = (f"trip-{uuid.uuid4().hex[:8]}" for _ in range(2))
    kept = {"retention.ms": "-1", "message.timestamp.after.max.ms": str(2**63 - 1)}
    with Admin(servers) as admin:
        admin.create_topics([NewTopic(name, 2, configs=kept) for name in (source, copy)]).all()
    with Producer(servers) as producer:
        for record in sent:
            producer.send(source, **record)
    code, lines, _ = kohort("consume", source, *ALL, "--format", "json")
    assert (code, lines.count(b"\n")) == (0, len(sent))
    code, _, reported = kohort("produce", copy, "--format", "json", stdin=lines)
    assert (code, reported) == (0, f"{count_with_noun(len(sent), 'record')}\n")
    assert read_all(servers, copy) == read_all(servers, source)


@pytest.mark.parametrize(
    ("field", "reported"),
    [
        ('"tiemstamp": 1', "unknown field 'tiemstamp'; did you mean timestamp?"),
        ('"partition": "1"', 'field partition must be an integer from 0 to 2147483647, not "1"'),
        ('"partition": true', "field partition must be an integer"),
        ('"partition": -1', "field partition must be an integer"),
        ('"timestamp_ms": 1.5', "field timestamp_ms must be an integer"),
        ('"timestamp_ms": 1e400', "field timestamp_ms"),
        ('"timestamp": "yesterday"', "field timestamp must be a time as 2026-01-31T12:00:00.123Z"),
        ('"timestamp": "1969-12-31T23:59:59.999Z"', "before 1970"),
        ('"timestamp": "2026-01-31T12:00:00.1234567Z"', "Kafka keeps milliseconds"),
        ('"timestamp": 5, "timestamp_ms": 6', "disagree: 5 ms and 6 ms"),
        ('"timestampType": 2', "field timestampType must be an integer from -1 to 1"),
        ('"topic": 5', "field topic must be text, not 5"),
        ('"headers": "h"', "headers must be a list of objects"),
        ('"headers": {"h": "v"}', "headers must be a list of objects"),
        ('"headers": ["h"]', "headers must be a list of objects"),
        ('"headers": [{"value": "v"}]', "field headers[0].key must be text, not null"),
        ('"headers": [{"key": 1}]', "field headers[0].key must be text"),
        ('"headers": [{"key": "h", "valeu": 1}]', "headers[0] has an unknown field 'valeu'"),
        ('"key": {"base64": "?"}', "field key: what base64 holds"),
        ('"key": {"base64": 5}', "field key: what base64 holds"),
        ('"key": "\\ud800"', "line 2"),
        ('"key": [', "line 2: no JSON"),
    ],
)
def test_wrong_field_is_named_with_its_line(kohort: Kohort, topic: str, field: str, reported: str) -> None:
    lines = f'{{"value": "before"}}\n{{"value": "v", {field}}}\n{{"value": "after"}}\n'.encode()
    code, _, said = kohort("produce", topic, "--format", "json", stdin=lines)
    assert code == 1
    assert reported in said
    assert said.startswith("kohort: line 2: ")
    assert "; nothing after it was sent" in said
    assert kohort("consume", topic, *ALL)[1] == b"before\n"


NESTED = b"[" * 2000 + b"]" * 2000


@pytest.mark.parametrize(
    ("field", "reported"),
    [
        ('"key": {"base64": "é"}'.encode(), "field key: what base64 holds is not base 64"),
        (b'"topic": "\xff"', "field topic: 'utf-8' codec"),
        (b'"timestamp": "\xff"', "field timestamp: 'utf-8' codec"),
        (b'"headers": [{"key": "\xff"}]', "field headers[0].key: 'utf-8' codec"),
        (b'"headers": [{"\xff": "v"}]', "headers must be a list of objects"),
        (b'"key": ' + NESTED, "the JSON is nested too deeply"),
        (b'"topic": ' + NESTED, "the JSON is nested too deeply"),
        (b'"headers": ' + NESTED, "the JSON is nested too deeply"),
    ],
)
def test_hostile_field_is_refused_as_any_other_bad_line(field: bytes, reported: str) -> None:
    """Each of these ended the command with a traceback."""
    lines = iter([(1, b'{"value": "before"}'), (2, b'{"value": "v", ' + field + b"}")])
    records = _from_json(lines)
    assert next(records) == (1, {"value": b"before"})
    with pytest.raises(InvalidInputError, match="^line 2: .*; nothing after it was sent") as refused:
        next(records)
    assert reported in str(refused.value)


@pytest.mark.parametrize("line", [b"[1]", b"5", b"{}", b'{"key": "k"}', b"\xff", b'{"value": "\xff"}'])
def test_line_that_is_no_record_is_refused(kohort: Kohort, topic: str, line: bytes) -> None:
    code, _, said = kohort("produce", topic, "--format", "json", stdin=line)
    assert code == 1
    assert said.startswith("kohort: line 1: ")
    assert "Traceback" not in said


def test_time_is_taken_in_each_form(kohort: Kohort, servers: str, topic: str) -> None:
    forms = ['"timestamp_ms": 5', '"timestamp": 5', '"timestamp": "1970-01-01T01:00:00.005+01:00"',
             '"timestamp": "1970-01-01T00:00:00.005"',
             '"timestamp": "1970-01-01T00:00:00.005000Z", "timestamp_ms": 5']  # fmt: skip
    lines = "".join(f'{{"value": null, {form}}}\n' for form in forms).encode()
    assert kohort("produce", topic, "--format", "json", stdin=lines)[0] == 0
    assert [record[2] for record in read_all(servers, topic)] == [5] * len(forms)


def test_topic_with_fewer_partitions_takes_records_by_key(kohort: Kohort, servers: str, topic: str) -> None:
    line = b'{"value": "v", "key": "k", "partition": 1}\n'
    assert kohort("produce", topic, "--format", "json", "--partition", "0", stdin=line)[0] == 0
    assert kohort("produce", topic, "--format", "json", "--by-key", stdin=line * 20)[0] == 0
    first, *others = read_all(servers, topic)
    assert first[0] == 0
    assert len({record[0] for record in others}) == 1
    code, _, reported = kohort("produce", topic, "--partition", "0", "--by-key")
    assert (code, "--by-key" in reported) == (2, True)


def test_line_that_is_too_large_is_named(kohort: Kohort, topic: str, tmp_path: Path) -> None:
    """By our own limit before it is sent, by the topic's when it is refused, and without reading a line to its end."""
    small = tmp_path / "small.properties"
    small.write_text("max.request.size=5000\n")
    config = ("--command-config", str(small))
    lines = b"a\n" + b"b" * 6000 + b"\nc\n"
    code, _, reported = kohort("produce", topic, *config, stdin=lines)
    assert (code, "kohort: line 2: a record of about" in reported) == (1, True)
    code, _, reported = kohort("produce", topic, *config, stdin=b"a\n" + b"b" * 6_000_000)
    assert (code, "kohort: line 2: more than" in reported) == (1, True)
    assert kohort("topics", "alter", topic, "--config", "max.message.bytes=1000")[0] == 0
    code, _, reported = kohort("produce", topic, stdin=b"a\n" + b"b" * 6000 + b"\nc\n")
    assert code == 1
    assert "the first of line 2: " in reported


@pytest.mark.parametrize("acks", ["0", "1", "all", "-1"])
def test_acks_is_an_option(kohort: Kohort, topic: str, acks: str) -> None:
    assert kohort("produce", topic, "--acks", acks, stdin=b"one\n")[0] == 0
    assert kohort("consume", topic, "--from-beginning", "--max-messages", "1")[1] == b"one\n"


def test_produce_on_a_terminal_says_what_to_type(servers: str, topic: str) -> None:
    person, terminal = pty.openpty()
    command = [*KOHORT, "produce", topic, "--bootstrap-server", servers]
    with subprocess.Popen(command, stdin=terminal, stderr=subprocess.PIPE, text=True) as process:
        os.close(terminal)
        os.write(person, b"hello\n\x04")
        assert process.communicate()[1] == "each line that you type is a record; Ctrl-D ends\n1 record\n"
        assert process.returncode == 0
    os.close(person)
