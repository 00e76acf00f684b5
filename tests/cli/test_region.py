"""`kohort region`, on our broker and on Apache Kafka."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.cli.running import Kohort
from tests.region.conftest import Collected, Worker, fill, make_topic, name
from tests.support.waiting import until

from kohort.cli.region import _must_be_member
from kohort.errors import InvalidInputError
from kohort.region.messages import MemberStatus, RegionStatus
from kohort.region.region import Region
from kohort.region.region_key import KEY_VARIABLE
from kohort.spark.region.query_state import SavedQuery

__all__ = ["name"]


@pytest.fixture
def worker(servers: str, name: str) -> Iterator[Worker]:
    make_topic(servers, name)
    fill(servers, name, range(100))
    with Region(name, servers, checkpoint_every="200ms") as region:
        worker = Worker(region, "m1", Collected(), name)
        until(lambda: worker.consumer.sequence > 0, "a sequence is complete")
        yield worker
        worker.close()


def test_a_region_is_shown(kohort: Kohort, worker: Worker, name: str, tmp_path: Path) -> None:
    [row] = [row for row in kohort("region", "list", "--json").json if row["region"] == name]
    assert row["groups"] == [name] and row["sequence"] > 0 and row["stopped"] == ""
    seen = kohort("region", "describe", name, "--json").json
    assert seen["term"] == 1 and [position["offset"] for position in seen["positions"]] == [25] * 4
    assert seen["queries"] == [] and seen["lag"][0]["lag"] == 0, "who is no Spark query is none"
    [member] = seen["members"]
    assert member["member"] == "m1" and len(member["partitions"]) == 4 and member["connected"] is True
    [sink] = seen["sinks"]
    assert sink["sink"] == member["sink"] and sink["sink"].startswith("test:")
    assert sink["publisher"] == "m1" and sink["published"] + sink["unpublished"] == seen["sequence"]
    properties = tmp_path / "client.properties"
    properties.write_text("ssl.truststore.location=/not-read-without-tls\n")
    assert kohort("region", "describe", name, "--command-config", str(properties)).code == 0
    shown = kohort("region", "describe", name)
    assert shown.code == 0 and "m1" in shown.out and member["sink"] in shown.out


def test_spark_queries_are_shown_with_their_batches_and_groups_with_their_lag(
    kohort: Kohort, servers: str, name: str
) -> None:
    saved = SavedQuery(epoch=4, batch=17, output="{}", operators=("dedup",), sources=("flights",))
    make_topic(servers, name)
    fill(servers, name, range(100))
    with Region(name, servers, checkpoint_every=None) as region:
        worker = Worker(region, "m1", Collected(), name, on_checkpoint=lambda sequence: saved.to_bytes())
        until(lambda: worker.consumer.metrics.partitions == 4 and worker.tables > 0, "it reads")
        region.checkpoint()
        until(lambda: worker.consumer.sequence > 0, "a sequence is complete")
        read = sum(position["offset"] for position in kohort("region", "describe", name, "--json").json["positions"])
        fill(servers, name, range(60))
        seen = kohort("region", "describe", name, "--json").json
        shown = kohort("region", "describe", name).out
        worker.close()
    assert seen["lag"] == [{"region": name, "group": name, "partitions": 4, "lag": 160 - read, "unknown": []}]
    [query] = seen["queries"]
    assert query.pop("records") == read > 0
    assert query == {
        "region": name, "query": "m1", "batch": 17, "epoch": 4, "reads": ["flights"], "state": ["dedup"],
    }  # fmt: skip
    assert "BATCH" in shown and "dedup" in shown and "LAG" in shown


def test_a_person_has_it_do_things(kohort: Kohort, worker: Worker, name: str) -> None:
    preview = kohort("region", "reset", name)
    assert preview.code == 1 and "--execute" in preview.err and worker.consumer.metrics.resets == 0
    assert kohort("region", "reset", name, "--execute").code == 0
    until(lambda: worker.consumer.metrics.resets == 1, "it goes back")
    before = worker.consumer.sequence
    assert kohort("region", "checkpoint", name, "--execute").code == 0
    until(lambda: worker.consumer.sequence > before, "a sequence is complete")
    assert kohort("region", "resume", name, "--execute").code == 0
    unknown = kohort("region", "stop-member", name, "m2", "--execute")
    assert unknown.code == 1 and "m1" in unknown.err
    assert kohort("region", "stop-member", name, "m1", "--execute").code == 0
    until(lambda: worker.error is not None, "it leaves")
    assert "the member was stopped" in str(worker.error)


def test_stop_member_refuses_a_member_that_waits_for_its_sink() -> None:
    """The control plane would ignore the request, and the command would say that it was recorded."""
    waiting = MemberStatus("m1", "g", "waits", -1, (), True, "s", "the sink is down", registered=False)
    seen = RegionStatus("r", "RUNNING", 1, 1, 1, 1, (waiting,), (), {})
    with pytest.raises(InvalidInputError, match="m1 has not registered with region r yet"):
        _must_be_member(seen, "m1")
    _must_be_member(replace(seen, members=(replace(waiting, registered=True),)), "m1")


def test_a_region_is_deleted_when_nobody_serves_it(kohort: Kohort, servers: str, name: str) -> None:
    make_topic(servers, name)
    fill(servers, name, range(100))
    with Region(name, servers, checkpoint_every="200ms") as region:
        worker = Worker(region, "m1", Collected(), name)
        until(lambda: worker.consumer.sequence > 0, "a sequence is complete")
        assert "has a control plane" in kohort("region", "delete", name, "--execute").err
        worker.close()
    assert kohort("region", "delete", name).code == 1
    assert kohort("region", "delete", name, "--execute").code == 0
    assert name not in [row["region"] for row in kohort("region", "list", "--json").json]
    gone = kohort("region", "describe", name)
    assert gone.code == 1 and "no region" in gone.err
    with Region(f"{name}-next", servers, checkpoint_every="200ms") as region:
        worker = Worker(region, "m1", Collected(), name)
        until(lambda: worker.consumer.sequence > 0, "its group is free")
        worker.close()


def test_a_region_that_nobody_serves_says_what_to_start_and_where_its_records_are_shown(
    kohort: Kohort, servers: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_topic(servers, name)
    with Region(name, servers, checkpoint_every="200ms") as region:
        Worker(region, "m1", Collected(), name).close()
    whole, asks_s = Region._ask, 3.0  # twice the time after which a control plane counts as gone
    monkeypatch.setattr(Region, "_ask", lambda region, *said, timeout_s=None: whole(region, *said, timeout_s=asks_s))
    for command in (("describe", name), ("reset", name, "--execute")):
        refused = kohort("region", *command)
        assert (refused.code, refused.out) == (1, "")
        assert refused.err.count(f"region {name}") == refused.err.count("control plane") == 1
        assert refused.err.startswith(f"kohort: region {name} has no control plane: no application of it answers at ")
        assert "Start one, or `kohort region serve`; `kohort region list` shows what is stored" in refused.err


def test_a_process_serves_until_it_is_ended(kohort: Kohort, servers: str, name: str) -> None:
    make_topic(servers, name)
    fill(servers, name, range(100))
    command = [sys.executable, "-m", "kohort", "region", "serve", name, "--checkpoint-every", "200ms"]
    with subprocess.Popen([*command, "--bootstrap-server", servers], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready 1\n"
        with Region(name, servers, serves=False) as region:
            worker = Worker(region, "m1", Collected(), name)
            until(lambda: worker.consumer.sequence > 0, "a sequence is complete")
            os.kill(process.pid, signal.SIGTERM)
            assert process.wait(60) == 0
            with Region(name, servers, checkpoint_every="200ms") as other:
                assert other.describe(timeout_s=60).term == 2  # a busy Kafka takes its time to begin a term
                before = worker.consumer.sequence
                until(lambda: worker.consumer.sequence > before, "it goes on under another")
                worker.close()


def test_region_of_another_key_is_listed_and_resealed(
    kohort: Kohort, servers: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A region that moves from one machine to several changes from the machine's key to the operator's."""
    make_topic(servers, name)
    with Region(name, servers, checkpoint_every=None) as region:
        region.serve()
    monkeypatch.setenv(KEY_VARIABLE, "an operator's key of many characters")
    [row] = [row for row in kohort("region", "list", "--json").json if row["region"] == name]
    assert "sealed with another key" in row["stopped"] and row["term"] == 0
    refused = kohort("region", "describe", name)
    assert refused.code != 0 and f"kohort region reseal {name}" in refused.out + refused.err
    assert kohort("region", "reseal", name).code != 0, "shown only"
    assert kohort("region", "reseal", name, "--execute").code == 0
    [row] = [row for row in kohort("region", "list", "--json").json if row["region"] == name]
    assert (row["stopped"], row["term"]) == ("", 1)
    monkeypatch.delenv(KEY_VARIABLE)
    assert kohort("region", "delete", name, "--execute").code == 0
    assert name not in {row["region"] for row in kohort("region", "list", "--json").json}
