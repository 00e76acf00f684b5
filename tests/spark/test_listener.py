"""The application's events about its queries, and their effect on the sources."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.spark.conftest import PARTITIONS, Sink, Stage
from tests.spark.queries import declared
from tests.support.waiting import LAST_RESORT, TOO_SLOW

from kohort.client.group.member import GroupMember
from kohort.spark.data_source import KohortDataSource
from kohort.spark.driver_channel import ChannelServer
from kohort.spark.driver_server import RUNS_MAX, CompletedBatches, query_in_offset
from kohort.spark.options import parse_options
from kohort.spark.source.batch_offset import BatchOffset
from kohort.spark.source.readers import KohortStreamReader

NOW = {"availableNow": True}
FAR = {"processingTime": "1 hour"}
"""A trigger whose second time no test waits for."""
BOUND_MS = 2_000


def text(query: str, batch: int) -> str:
    return json.dumps(BatchOffset(query, batch).to_json())


def test_only_offsets_of_this_source_are_reported_and_each_source_of_a_query_is() -> None:
    assert query_in_offset(text("q1", 1)) == "q1"
    for other in ('{"flights":{"0":5}}', '"kohort"', "7", "None", "", None, '{"query":"q1"}', '{"kohort":1,"query":7}'):
        assert query_in_offset(other) is None
    reported = CompletedBatches().record_batch_completed(
        "run", [text("q1", 3), '{"flights":{"0":5}}', text("q2", 5), "None"]
    )
    assert reported == {"q1": {"kind": "done", "end": text("q1", 3)}, "q2": {"kind": "done", "end": text("q2", 5)}}


def test_source_of_a_query_with_state_is_sent_that() -> None:
    ledger = CompletedBatches()
    assert ledger.record_batch_completed("run", [text("q1", 1)], stateful=True)["q1"]["stateful"] is True
    last = ledger.last_message("q1")
    assert last is not None and last["stateful"] is True


def test_a_source_that_connects_late_hears_the_last_of_its_query_until_the_run_is_over() -> None:
    ledger = CompletedBatches()
    assert ledger.last_message("q1") is None
    ledger.record_batch_completed("run", [text("q1", 1), text("q2", 1)])
    ledger.record_batch_completed("run", [text("q1", 2)])
    assert ledger.last_message("q1") == {"kind": "done", "end": text("q1", 2)}
    assert ledger.last_message("q2") == {"kind": "done", "end": text("q2", 1)}
    assert ledger.forget_ended_run("run") == {"q1": {"kind": "over"}, "q2": {"kind": "over"}}
    assert ledger.last_message("q1") is None
    assert ledger.forget_ended_run("run") == {}
    assert ledger.forget_ended_run("never seen") == {}


def test_runs_whose_end_is_never_reported_do_not_pile_up() -> None:
    ledger = CompletedBatches()
    for number in range(RUNS_MAX + 10):
        ledger.record_batch_completed("first", [text("first", number)])
        ledger.record_batch_completed(f"run{number}", [text(f"q{number}", 1)])
    assert ledger.last_message("q0") is None
    assert ledger.last_message("first") is not None, "one that goes on is no old one"
    assert ledger.last_message(f"q{RUNS_MAX + 9}") is not None


def test_the_token_travels_to_the_source_and_not_to_the_workers() -> None:
    from pyspark.serializers import CloudPickleSerializer

    pickler = CloudPickleSerializer()
    board = ChannelServer()
    try:
        token = board.address.token
        cls = KohortDataSource.with_channel_address(board.address)
        made = pickler.loads(pickler.dumps(cls))(
            options={"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "flights", "group.id": "g"}
        )
        source = pickler.loads(pickler.dumps(made))
        assert source.address == board.address
        assert source.name() == "kohort" and type(source).__name__ == "KohortDataSource"
        reader = source.streamReader(declared(source))
        assert isinstance(reader, KohortStreamReader) and reader._address == board.address
        for on in (source, reader):
            assert token not in pickler.dumps(on)
        worker = pickler.loads(pickler.dumps(source))
        assert type(worker) is KohortDataSource and worker.schema() == source.schema()
        assert parse_options(worker._raw) == parse_options(source._raw)
    finally:
        board.close()


@pytest.mark.spark
@LAST_RESORT
@pytest.mark.filterwarnings("default")
def test_an_idle_query_has_no_lag_and_gives_partitions_to_a_member_that_joins(
    run: Callable[..., Any], stage: Stage
) -> None:
    """The next trigger is an hour away, far beyond max.poll.interval.ms."""
    stage.produce(40)
    sink = Sink()
    query = run(sink, trigger=FAR, **{"kafka.max.poll.interval.ms": BOUND_MS})
    stage.until(lambda: sink.values() == list(range(40)), "the batch is in the sink")
    stage.until(lambda: stage.lag() == 0, "it is committed while the next trigger is far away")
    with GroupMember(
        stage.servers, stage.group, topics=[stage.topic], client_id="newcomer", max_poll_interval_ms=BOUND_MS
    ) as newcomer:
        mine = stage.assigned(newcomer, PARTITIONS // 2).partitions
        assert [position.offset for position in newcomer.committed(mine).values() if position is not None] == [10, 10]
        assert sorted(map(len, stage.members().values())) == [2, 2], "the query was not evicted"
    stage.until(lambda: stage.members() == {"q": (0, 1, 2, 3)}, "it has all again, without a trigger")
    assert query.isActive and len(sink.every) == 1


@pytest.mark.spark
@LAST_RESORT
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("after", ["the commit log", "the commit"])
def test_a_stop_after_a_finished_batch_has_nothing_read_again(
    run: Callable[..., Any], stage: Stage, after: str
) -> None:
    stage.produce(40)
    sink = Sink()
    query = run(sink, trigger=FAR)
    written = stage.folder / "checkpoint-q" / "commits" / "0"
    stage.until(written.exists, "Spark's commit log has the batch")
    if after == "the commit":
        stage.until(lambda: stage.lag() == 0, "the group has it")
    query.stop()
    stage.until(lambda: not stage.members(), "the member leaves")
    assert stage.lag() == 0
    other = Sink()
    stage.finished(run(other, "other", trigger=NOW))
    assert other.values() == []


SCRIPT = """
import os, sys, threading, time
from pathlib import Path
from pyspark.sql import SparkSession
from kohort import Admin, Broker, Producer
from kohort.spark import driver_server, register

folder, TOO_SLOW = Path(sys.argv[1]), sys.argv[2]

def wait(condition):
    until = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)

def start(spark, name):
    def sink(frame, number):
        frame.count()

    options = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": "flights", "group.id": name}
    stream = spark.readStream.format("kohort").options(startingOffsets="earliest", **options).load()
    writer = stream.writeStream.foreachBatch(sink).option("checkpointLocation", str(folder / name))
    query = writer.trigger(processingTime="1 hour").start()
    wait(lambda: done(name) or not query.isActive)
    if not done(name):  # a busy machine: Spark gives its Python processes ten seconds to come up
        assert TOO_SLOW in str(query.exception()), query.exception()
        return start(spark, name)
    return query

def done(name):
    return sum(one.offset for one in admin.list_consumer_group_offsets(name).all().values() if one) == 10

with Broker(config={"group.initial.rebalance.delay.ms": 0}) as broker, Admin(broker.bootstrap_servers) as admin:
    with Producer(broker.bootstrap_servers) as producer:
        for number in range(10):
            producer.send("flights", value=b"%d" % number)
    spark = (
        SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.log.level", "INFO")
        .config("spark.driver.memory", "768m").getOrCreate()
    )
    register(spark)
    type(spark.streams).removeListener = None  # a listener that goes and comes again misses what happens meanwhile
    register(spark)
    other = spark.newSession()
    register(other)
    assert spark.streams._jsqm.listListeners().__len__() == 1
    one, two = start(spark, "one"), start(other, "two")
    for query in (one, two):
        query.explain(True)
        wait(lambda: query.lastProgress is not None)
        print(query.lastProgress.json, query.status)
    frame = spark.readStream.format("kohort").option("kafka.bootstrap.servers", broker.bootstrap_servers)
    frame = frame.option("subscribe", "flights").load()
    frame.explain(True)
    print(frame._jdf.queryExecution().toString(), spark.sparkContext.getConf().getAll())
    token = driver_server._application.channel_address.token
    print(driver_server._application.channel_address, vars(driver_server._application))
    print("THREADS", sum(thread.name == "kohort-channel" for thread in threading.enumerate()))
    child = os.fork()
    if child == 0:
        os._exit(0 if driver_server._application._server._listening.fileno() == -1 else 1)
    assert os.waitpid(child, 0)[1] == 0
    one.stop()
    spark.stop()
    print("STOPPED", file=sys.stderr, flush=True)
    again = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    register(again)
    start(again, "three")
    print("ENDING", file=sys.stderr, flush=True)  # with a query that runs
    (folder / "token").write_text(token.hex())
"""


@pytest.mark.spark
@LAST_RESORT
def test_the_token_is_printed_nowhere_and_sessions_come_and_go_in_one_application(tmp_path: Path) -> None:
    """Two registrations, two sessions, a fork, a stop, a session after it, and an end with a query that runs."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK")}
    environment |= {"SPARK_LOCAL_IP": "127.0.0.1"}
    ran = subprocess.run(
        [sys.executable, "-X", "dev", "-c", SCRIPT, str(tmp_path), TOO_SLOW],
        env=environment,
        capture_output=True,
        cwd=tmp_path,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr.decode()[-5000:]
    token = bytes.fromhex((tmp_path / "token").read_text())
    (tmp_path / "token").unlink()
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert any(b'"kohort"' in data for data in files.values()), "the checkpoints are among them"
    assert b"MicroBatchScan" in ran.stdout and b"THREADS 1" in ran.stdout
    forms = [
        token,
        token.hex().encode(),
        token.hex().upper().encode(),
        base64.b64encode(token)[:-2],
        repr(token).encode(),
    ]
    for name, data in {"standard output": ran.stdout, "the log": ran.stderr, **files}.items():
        for form in forms:
            assert form not in data, f"the token is in {name}"
    log = ran.stderr.decode()
    assert "INFO" in log, "the log has Spark's smaller lines too"
    for sign in ("Py4J", "ResourceWarning", "kohort/spark/listener", "kohort/spark/channel", "Exception in thread"):
        assert sign not in log, sign
