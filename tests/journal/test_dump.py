"""Apache Kafka's own log dump reads our files, and finds nothing to complain about."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kohort.groups import records as r
from kohort.ids import TopicPartition
from kohort.journal.codec import encode_record
from kohort.journal.local import LogJournal
from kohort.log import LogStore, Marker
from kohort.log.check import FolderCheck, locked_folder
from kohort.log.repair import repair
from tests.journal.test_journal import PENDING, RECORDS, TOMBSTONES
from tests.log.making import NOW, batch
from tests.support.apache_kafka import KafkaTools

pytestmark = pytest.mark.kafka

_SUFFIXES = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
_FIRST_OFFSET = re.compile(r"Non-consecutive offsets in \S+\n  -1 is followed by \d+\n")
"""What the tool prints for every segment that does not start at offset 0, also one of Apache Kafka's own."""


_GAP = re.compile(r"(Non-consecutive offsets in \S+\n)?  \d+ is followed by \d+\n")
"""What it prints with `--deep-iteration` where a batch without records lies between others, as after compaction."""


def _is_ours(record: r.Record) -> bool:
    """Whether it is of a kind that Kafka does not have, of which the tool shows the number alone."""
    key, _ = encode_record(record)
    return int.from_bytes(key[:2]) >= 10_000


def _dump(tools: KafkaTools, folder: Path, *options: str, gaps: bool = False) -> str:
    files = ",".join(str(f) for f in sorted(folder.iterdir()) if f.suffix in _SUFFIXES)
    done = tools.run(tools.DUMP_LOG, *options, "--files", files)
    assert done.returncode == 0
    said = _FIRST_OFFSET.sub("", done.stderr)
    assert (_GAP.sub("", said) if gaps else said) == ""
    assert "isvalid: false" not in done.stdout
    return done.stdout


def test_topic_segments_indexes_and_snapshots(tmp_path: Path, kafka_tools: KafkaTools) -> None:
    with LogStore(tmp_path / "d") as store:
        store.create_topic("t", 1, {"segment.bytes": "60000", "index.interval.bytes": "500"})
        log = store.partition(TopicPartition("t", 0))
        for number in range(400):
            codec = ("none", "gzip", "snappy", "lz4", "zstd")[number % 5]
            log.append(batch(*[b"v%d" % number * 5] * (1 + number % 9), at=NOW + number % 300, compression=codec), NOW)
        facts = {"producer_id": 9, "producer_epoch": 0, "transactional": True}
        log.append(batch(b"x", b"y", base_sequence=0, **facts), NOW)
        log.append_marker(Marker(9, 0, False, 1), NOW)
        log.append(batch(b"z", base_sequence=2, **facts), NOW)
        end = log.end_offset
    out = _dump(kafka_tools, tmp_path / "d" / "t-0", "--deep-iteration")
    offsets = [int(found) for found in re.findall(r"^\| offset: (\d+)", out, re.MULTILINE)]
    assert offsets == list(range(end))
    assert "endTxnMarker: ABORT coordinatorEpoch: 1" in out
    assert re.search(r"producerId: 9 firstOffset: \d+ lastOffset: \d+ lastStableOffset: \d+", out)
    assert "producerId: 9 producerEpoch: 0 coordinatorEpoch: 1" in out
    assert len(re.findall(r"^offset: \d+ position: \d+", out, re.MULTILINE)) > 50
    assert len(re.findall(r"^timestamp: \d+ offset: \d+", out, re.MULTILINE)) > 20


def test_the_group_journal(tmp_path: Path, kafka_tools: KafkaTools) -> None:
    with LogStore(tmp_path / "d") as store:
        store.create_topic("__consumer_offsets", 1, {"cleanup.policy": "compact"})
        journal = LogJournal(store.partition(TopicPartition("__consumer_offsets", 0)))
        journal.begin_term(1)
        journal.append(1, [*RECORDS, PENDING, r.TransactionMarked(7, 1, True), *TOMBSTONES], NOW)
    folder = tmp_path / "d" / "__consumer_offsets-0"
    _dump(kafka_tools, folder, "--deep-iteration")
    out = _dump(kafka_tools, folder, "--offsets-decoder")
    assert "Error" not in out
    assert "Could not" not in out
    assert out.count("payload: <DELETE>") == len([tombstone for tombstone in TOMBSTONES if not _is_ours(tombstone)])
    for words in (
        '"group":"g","topic":"t","partition":3',
        '"offset":42,"leaderEpoch":5,"metadata":"meta","commitTimestamp":1000',
        '"generation":3,"protocol":"range","leader":"m1"',
        '"subscribedTopicRegex":"x.*"',
        '"epoch":3,"metadataHash":-77',
        '"assignmentEpoch":3,"assignmentTimestamp":99',
        '"partitions":[0,1,2]',
        '"memberEpoch":3,"previousMemberEpoch":2,"state":1',
        '"topics":["xa","xb"],"version":5,"timestamp":1234',
        "Unknown record type 10000",
        "Unknown record type 10001",
        "Unknown record type 10002",
    ):
        assert words in out


def test_a_repaired_log(tmp_path: Path, kafka_tools: KafkaTools) -> None:
    """The empty batches that take the offsets lost are what Kafka's tool expects, in a topic and in the journal."""
    with LogStore(tmp_path / "d") as store:
        store.create_topic("t", 1, {"segment.bytes": "9000", "index.interval.bytes": "500"})
        store.create_topic("__consumer_offsets", 1, {"cleanup.policy": "compact"})
        log = store.partition(TopicPartition("t", 0))
        for number in range(100):
            log.append(batch(*[b"v%d" % number * 5] * (1 + number % 9), at=NOW + number), NOW)
        end = log.end_offset
        journal = LogJournal(store.partition(TopicPartition("__consumer_offsets", 0)))
        journal.begin_term(1)
        for offset in range(9):
            journal.append(1, [r.OffsetCommitted("g", "t", 0, offset, -1, "", NOW)], NOW)
    for part in ("t-0", "__consumer_offsets-0"):
        path = min((tmp_path / "d" / part).glob("*.log"))
        data = bytearray(path.read_bytes())
        data[8] = 0xFF
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    with locked_folder(tmp_path / "d"):
        found = FolderCheck(tmp_path / "d").run().found
        assert len(found) == len(list(repair(found))) == 4
    lost = {
        o
        for tombstone in found
        for o in range(tombstone.damage.first_offset, tombstone.damage.next_offset)
        if tombstone.partition == "t-0"
    }
    out = _dump(kafka_tools, tmp_path / "d" / "t-0")
    assert len(re.findall(r"^baseOffset: \d+ lastOffset: \d+ count: 0 ", out, re.MULTILINE)) == 2
    out = _dump(kafka_tools, tmp_path / "d" / "t-0", "--deep-iteration", gaps=True)
    offsets = [int(found) for found in re.findall(r"^\| offset: (\d+)", out, re.MULTILINE)]
    assert offsets == [offset for offset in range(end) if offset not in lost]
    out = _dump(kafka_tools, tmp_path / "d" / "__consumer_offsets-0", "--offsets-decoder", gaps=True)
    assert len(re.findall(r"^baseOffset: \d+ lastOffset: \d+ count: 0 ", out, re.MULTILINE)) == 2
    assert out.count('"group":"g"') == 7
