"""The dashboard with a history file: what a page shows after a restart, disks that refuse, and `groups history`."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from tests.dashboard.conftest import Dashboard, behind
from tests.lag.test_history_file import report
from tests.support.nursery import run_command
from tests.support.processes import KOHORT, Start, ready
from tests.support.waiting import until

from kohort import Broker, Consumer
from kohort.dashboard import observer, server
from kohort.lag.history_file import STEP_MS, HistoryReader, HistoryWriter

pytest.importorskip("uvicorn", reason="the extra `dashboard` is not installed")

Serve = Callable[..., Dashboard]


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(config={"group.initial.rebalance.delay.ms": 0}) as broker:
        yield broker


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.db"


def group_of(dashboard: Dashboard, name: str) -> Any:
    return dashboard.get("group", name=name)["group"]


def test_page_shows_after_a_restart_what_it_showed_before(
    serve: Serve, broker: Broker, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observer, "RESTORED_INTERVALS", 10_000)  # of 100 ms: the restart may take its time
    servers = broker.bootstrap_servers
    behind(servers, "t", "g")
    with ExitStack() as first:
        before = Dashboard(first, servers, path)
        until(lambda: "g" in before.groups(), "the group is read")
        with Consumer(servers, group_id="g", client_id="reader", enable_auto_commit=False) as consumer:
            consumer.subscribe(["t"])
            until(lambda: bool(consumer.poll(50) or consumer.assignment()), "the consumer has its partitions")
            until(lambda: group_of(before, "g")["members"] == 1, "the member is seen")
        until(lambda: group_of(before, "g")["members"] == 0, "its end is seen")
        until(lambda: len(group_of(before, "g")["lags"]) >= 5, "the group is read five times")
        was = group_of(before, "g")
        assert before.get("overview")["cluster"]["history_error"] == ""
    after = serve(servers, path)
    until(lambda: "g" in after.groups(), "the group is read")
    first_ms = was["times_ms"][-1] + 1
    until(lambda: group_of(after, "g")["times_ms"][-1] > first_ms, "it is read again")
    found = group_of(after, "g")
    kept = [number for number, at_ms in enumerate(found["times_ms"]) if at_ms in was["times_ms"]]
    shift = len(was["times_ms"]) - len(kept)  # a slow machine has had time for more reads than are kept
    assert len(kept) >= 3 and kept == list(range(len(kept)))
    assert found["times_ms"][: len(kept)] == was["times_ms"][shift:]
    assert found["lags"][: len(kept)] == was["lags"][shift:]
    assert found["time_lags_ms"][: len(kept)] == was["time_lags_ms"][shift:]
    lags = {row["partition"]: row["lags"][: len(kept)] for row in found["partition_rows"]}
    assert lags == {row["partition"]: row["lags"][shift:] for row in was["partition_rows"]}
    assert {"joined", "left"} <= kinds(found).keys()
    changes = Counter(json.dumps(change) for change in group_of(after, "g")["timeline"])
    assert set(changes.values()) == {1}, "rebalances that the coordinator still tells are not there twice"
    assert {json.dumps(change) for change in was["timeline"]} <= changes.keys()


def kinds(group: Any) -> Counter[str]:
    return Counter(change["kind"] for change in group["timeline"])


def test_file_that_can_not_be_written_is_said_and_stops_no_page(serve: Serve, broker: Broker, path: Path) -> None:
    behind(broker.bootstrap_servers, "t", "g")
    lock = path.with_name("history.db.lock")
    lock.mkdir()  # can't be opened as a file, whoever asks
    dashboard = serve(broker.bootstrap_servers, path)
    until(lambda: "g" in dashboard.groups(), "the group is read")
    said = dashboard.get("overview")["cluster"]["history_error"]
    assert "Is a directory" in said and str(path) in said
    assert group_of(dashboard, "g")["lag"] == 7
    lock.rmdir()
    until(lambda: dashboard.get("overview")["cluster"]["history_error"] == "", "it is written when it can be", 30)


def test_page_has_a_longer_time_from_the_file(serve: Serve, broker: Broker, path: Path) -> None:
    behind(broker.bootstrap_servers, "t", "g")
    at_ms = round(time.time() * 1000)
    minutes = {at_ms - number * STEP_MS: number for number in range(10, 100) if not 40 <= number < 60}
    with HistoryWriter(path) as writer:
        for taken_ms, lag in minutes.items():
            writer.add_report(report(taken_ms, {"g": (lag,)}), None)
            until(lambda: not writer._pending, "it is written")
    dashboard = serve(broker.bootstrap_servers, path)
    until(lambda: dashboard.get("past", name="g", last_ms=3_600_000)["lags"][-1:] == [7], "the present is there too")
    hour = dashboard.get("past", name="g", last_ms=50 * 60_000)
    assert hour["is_kept"] and len(hour["times_ms"]) == len(hour["time_lags_ms"])
    assert max(lag for lag in hour["lags"] if lag is not None) == 39
    day = dashboard.get("past", name="g", last_ms=24 * 3_600_000)
    known = [lag for lag in day["lags"] if lag is not None]
    assert known == [*range(99, 59, -1), *range(39, 9, -1), 7]
    assert [number for number, lag in enumerate(day["lags"]) if lag is None] == [40, 71], "gaps are gaps"
    assert dashboard.get("past", name="unknown", last_ms=1)["lags"] == []
    for wrong in (0, "x", 10**18):
        assert dashboard.ask("past", name="g", last_ms=wrong)[0] == 400
    assert serve(broker.bootstrap_servers).get("past", name="g", last_ms=1)["is_kept"] is False


def test_file_of_another_cluster_is_not_shown_on_the_page_of_a_group(serve: Serve, broker: Broker, path: Path) -> None:
    behind(broker.bootstrap_servers, "t", "g")
    with HistoryWriter(path) as writer:
        writer.add_report(report(round(time.time() * 1000) - 600_000, {"g": (111,)}), "another cluster")
        until(lambda: not writer._pending, "it is written")
    dashboard = serve(broker.bootstrap_servers, path)
    until(lambda: "another cluster" in dashboard.get("overview")["cluster"]["history_error"], "it is noticed")
    assert dashboard.get("past", name="g", last_ms=3_600_000)["lags"] == []


def test_requests_that_wait_for_a_disk_are_bounded(
    serve: Serve, broker: Broker, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    behind(broker.bootstrap_servers, "t", "g")
    dashboard, is_there = serve(broker.bootstrap_servers, path), threading.Event()

    def hang(self: HistoryWriter) -> HistoryReader:
        assert is_there.wait(60)
        return HistoryReader(path)

    until(lambda: "g" in dashboard.groups(), "the group is read")
    until(path.exists, "the file is there")
    monkeypatch.setattr(HistoryWriter, "reader", hang)
    with ThreadPoolExecutor(server.PASTS_MAX + 1) as threads:
        asking = [threads.submit(dashboard.ask, "past", name="g", last_ms=1) for _ in range(server.PASTS_MAX + 1)]
        until(lambda: any(call.done() for call in asking), "one is refused")
        assert group_of(dashboard, "g")["lag"] == 7, "and the page goes on"
        is_there.set()
        assert Counter(call.result(60)[0] for call in asking) == {200: server.PASTS_MAX, 429: 1}
    assert dashboard.ask("past", name="g", last_ms=1)[0] == 200


# -- The commands


def begin(start: Start, servers: str, path: Path) -> tuple[subprocess.Popen[str], str]:
    """Starts a dashboard that reads often; returns it and its address."""
    often = ("--listen", "127.0.0.1:0", "--interval", "500", "--window", "200")
    kept = ("--history", str(path), "--history-retention", "1d")
    process = start("dashboard", "--bootstrap-server", servers, *often, *kept)
    return process, ready(process)


def overview(url: str) -> Any:
    with urlopen(f"{url}api/overview", timeout=20) as answer:
        return json.loads(answer.read())["overview"]


def kept_reads(path: Path) -> list[int]:
    with HistoryReader(path) as reader:
        return [values.at_ms for values in reader.read_values()]


def asked(*words: str) -> subprocess.CompletedProcess[str]:
    return run_command([*KOHORT, *words], 60)


def test_killed_dashboard_leaves_its_history_to_the_next_one_and_to_the_command(
    start: Start, broker: Broker, path: Path
) -> None:
    behind(broker.bootstrap_servers, "t", "g")
    process, url = begin(start, broker.bootstrap_servers, path)
    until(lambda: [row["status"] for row in overview(url)["groups"]] == ["STOP"], "the group has stopped", 60)
    until(lambda: len(kept_reads(path)) >= 5, "five reads are written", 60)
    before = kept_reads(path)
    second = asked("dashboard", "--listen", "127.0.0.1:0", "--history", str(path))
    assert second.returncode == 2 and "another process writes the history" in " ".join(second.stderr.split())
    rows = json.loads(asked("groups", "history", "g", "--file", str(path), "--json").stdout)
    assert (rows[-1]["group"], rows[-1]["lag"], rows[-1]["status"]) == ("g", 7, "STOP")
    assert 0 < rows[-1]["time_lag"] < 600
    process.kill()
    process.wait(60)
    process, url = begin(start, broker.bootstrap_servers, path)
    until(lambda: bool(overview(url)["times_ms"]), "the cluster is read", 60)
    assert set(before[-5:]) <= set(overview(url)["times_ms"])
    process.terminate()
    assert process.wait(60) == 0
    table = asked("groups", "history", "g", "--file", str(path), "--last", "1d").stdout.splitlines()
    assert table[0].split() == ["TIME", "GROUP", "STATUS", "LAG", "TIME-LAG", "MEMBERS"]
    assert ["g", "STOP", "7"] in [row.split()[1:4] for row in table], (
        "a new process has to see for a while that it stands"
    )


def test_command_shows_changes(serve: Serve, broker: Broker, path: Path) -> None:
    behind(broker.bootstrap_servers, "t", "g")
    dashboard = serve(broker.bootstrap_servers, path)
    until(lambda: "g" in dashboard.groups(), "the group is read")
    behind(broker.bootstrap_servers, "u", "later")
    until(lambda: "later" in dashboard.groups(), "another group is there")
    words = ("groups", "history", "later", "--file", str(path), "--changes", "--json")
    until(lambda: asked(*words).returncode == 0, "it is written")
    found = json.loads(asked(*words).stdout)
    assert {row["group"] for row in found} == {"later"}
    assert (found[0]["kind"], found[0]["text"]) == ("created", "the group is there")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (
            ("dashboard", "--history", "FILE", "--history-retention", "soon"),
            2,
            "--history-retention soon: give a number",
        ),
        (("dashboard", "--history", "FILE", "--history-retention", "401d"), 2, "up to 9600h"),
        (("dashboard", "--history", "FILE", "--history-max-bytes", "5"), 2, "--history-max-bytes 5: give at least"),
        (("dashboard", "--history", "FOLDER"), 2, "is a folder: name a file"),
        (("dashboard", "--history", "FOLDER/missing/file"), 2, "there is no folder"),
        (("dashboard", "--history", "DAMAGED"), 1, "is damaged or none"),
        (("groups", "history", "g", "--file", "DAMAGED"), 1, "move it away"),
        (("groups", "history", "g", "--file", "FILE"), 1, "there is no history"),
        (("groups", "history", "g", "--file", "FILE", "--last", "x"), 2, "--last x: give a number"),
    ],
)
def test_wrong_use_is_reported(tmp_path: Path, words: tuple[str, ...], code: int, said: str) -> None:
    damaged = tmp_path / "damaged"
    damaged.write_text("not a database " * 500)
    places = {"FILE": "file", "DAMAGED": "damaged", "FOLDER": ".", "FOLDER/missing/file": "missing/file"}
    ended = asked(*(str(tmp_path / places[word]) if word in places else word for word in words))
    assert ended.returncode == code
    assert said in " ".join(ended.stderr.split())
    assert damaged.read_text() == "not a database " * 500
