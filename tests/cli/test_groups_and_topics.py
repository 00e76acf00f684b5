"""Commands for topics and groups against our broker, and against Apache Kafka where it can run."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from tests.cli.running import Kohort, committed, fill
from tests.support.waiting import until

from kohort import Admin, Broker, Consumer, TopicPartition
from kohort.broker.server.fault_kinds import Fault
from kohort.cli.app import run
from kohort.client.offsets import OffsetAndMetadata


def test_topics_live_and_die(kohort: Kohort, topic: str) -> None:
    assert topic in {row["topic"] for row in kohort("topics", "list", "--json").json}
    (described,) = kohort("topics", "describe", topic, "--json").json
    assert [part["partition"] for part in described["partitions"]] == [0, 1, 2]
    assert all(part["log_end"] == 0 for part in described["partitions"])
    again = kohort("topics", "create", topic)
    assert again.code == 1
    assert "TOPIC_ALREADY_EXISTS" in again.err
    assert kohort("topics", "create", topic, "--if-not-exists").code == 0
    assert kohort("topics", "delete", topic).code == 0
    assert kohort("topics", "delete", topic).code == 1
    gone = kohort("topics", "describe", topic)
    assert gone.code == 1
    assert "UNKNOWN_TOPIC_OR_PARTITION" in gone.err


def test_topic_is_altered(kohort: Kohort, topic: str) -> None:
    assert kohort("topics", "alter", topic, "--partitions", "5", "--config", "max.message.bytes=123456").code == 0
    (described,) = kohort("topics", "describe", topic, "--json").json
    assert len(described["partitions"]) == 5
    assert described["configs"]["max.message.bytes"] == "123456"
    assert kohort("topics", "alter", topic, "--delete-config", "max.message.bytes").code == 0
    assert "max.message.bytes" not in kohort("topics", "describe", topic, "--json").json[0]["configs"]
    fewer = kohort("topics", "alter", topic, "--partitions", "2")
    assert fewer.code == 1
    assert "INVALID_PARTITIONS" in fewer.err


def test_group_is_listed_and_described(kohort: Kohort, topic: str, group: str) -> None:
    listed = {row["group"]: row for row in kohort("groups", "list", "--json").json}
    assert listed[group]["state"] == "Empty"
    (described,) = kohort("groups", "describe", group, "--json").json
    assert [(row["partition"], row["committed"], row["lag"]) for row in described["partitions"]] == [
        (0, 0, 0),
        (1, 0, 0),
        (2, 0, 0),
    ]
    text = kohort("groups", "lag", group).out
    assert text.splitlines()[0].split() == [
        "GROUP",
        "TOPIC",
        "PARTITION",
        "COMMITTED",
        "LOG-START",
        "LOG-END",
        "LAG",
        "TIME-LAG",
        "LOST",
        "STATUS",
        "CAUSE",
        "ERROR",
    ]


def test_offset_that_the_partition_does_not_hold_is_shown(kohort: Kohort, servers: str, topic: str, group: str) -> None:
    fill(servers, topic, 5)
    with Admin(servers) as admin:
        admin.alter_consumer_group_offsets(
            group, {TopicPartition(topic, 0): OffsetAndMetadata(2), TopicPartition(topic, 1): OffsetAndMetadata(9)}
        ).all()
        admin.delete_records({TopicPartition(topic, 0): 3}).all()
    for command in ("lag", "describe"):
        lines = kohort("groups", command, group).out.splitlines()[-3:]
        assert [
            " ".join(line.split()).endswith(end)
            for line, end in zip(lines, (" 1 ERR before start -", " - ERR past end -", " - OK - -"), strict=True)
        ] == [True] * 3
    (described,) = kohort("groups", "describe", group, "--json").json
    rows = [(row["lag"], row["lost"], row["status"], row["cause"]) for row in described["partitions"]]
    assert rows == [(2, 1, "ERR", "before start"), (0, None, "ERR", "past end"), (0, None, "OK", None)]
    assert described["status"] == "ERR"


def test_lag_without_names_is_of_all_groups(kohort: Kohort, servers: str, topic: str, group: str) -> None:
    fill(servers, topic, 5)
    rows = {(row["group"], row["partition"]): row for row in kohort("groups", "lag", "--json").json}
    behind = rows[group, 0]
    assert (behind["lag"], behind["status"], behind["cause"], behind["time_lag_exact"]) == (5, "OK", None, True)
    assert 0 <= behind["time_lag"] < 600
    assert (rows[group, 1]["lag"], rows[group, 1]["time_lag"]) == (0, 0)
    for option in ("--all", "--all-groups"):
        assert (group, 0) in {
            (row["group"], row["partition"]) for row in kohort("groups", "lag", option, "--json").json
        }
    assert kohort("groups", "lag", group, "--all").code == 2


def test_what_is_refused_is_said_once(kohort: Kohort, topic: str) -> None:
    """By the error alone, not by a row with DONE no beside it; the topic's name stands there once."""
    said = kohort("topics", "create", topic)
    assert (said.code, said.out) == (1, "")
    assert said.err.count(topic) == 1
    said = kohort("topics", "create", topic, f"{topic}-new")
    assert [row["TOPIC"] for row in said.table] == [f"{topic}-new"]
    assert said.code == 1
    assert [row["done"] for row in kohort("topics", "create", topic, "--json").json] == [False]
    said = kohort("topics", "create", topic, "--if-not-exists")
    assert (said.code, [row["DONE"] for row in said.table]) == (0, ["no"])
    said = kohort("topics", "create", f"{topic}-zero", "--partitions", "0")
    assert (said.code, said.out, said.err.count(f"{topic}-zero")) == (1, "", 1)
    said = kohort("topics", "delete", f"{topic}-none")
    assert (said.code, said.out) == (1, "")
    assert said.err.count(f"{topic}-none") == 1
    said = kohort("topics", "describe", f"{topic}-none")
    assert said.err.startswith(f"kohort: topic '{topic}-none': this server has no such topic")


@pytest.mark.parametrize(
    "args", [("lag", ""), ("describe", "a", ""), ("members", ""), ("delete", ""), ("watch", ""),
             ("reset-offsets", "", "--topic", "t", "--to-latest"), ("clone", "a", ""), ("clone", "", "a"),
             ("delete-offsets", "", "--topic", "t")]
)  # fmt: skip
def test_group_without_a_name_is_wrong_use(kohort: Kohort, args: tuple[str, ...]) -> None:
    said = kohort("groups", *args)
    assert (said.code, said.out) == (2, "")
    assert "kohort: a group's name has at least one character" in said.err


@pytest.mark.parametrize(
    "args", [("consume", ""), ("consume", "t", "--group", ""), ("produce", ""), ("topics", "create", "t", ""),
             ("topics", "describe", ""), ("topics", "delete", ""), ("topics", "alter", "", "--partitions", "3")]
)  # fmt: skip
def test_empty_name_is_wrong_use_before_a_cluster_is_asked_for(
    args: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*args, "--bootstrap-server", "127.0.0.1:1"]) == 2
    assert "'s name has at least one character" in capsys.readouterr().err


def test_members_are_shown_and_offsets_guarded(kohort: Kohort, servers: str, topic: str, group: str) -> None:
    with Consumer(servers, group_id=group, client_id="watched", heartbeat_interval_ms=200) as consumer:
        consumer.subscribe([topic])

        def joined() -> bool:
            consumer.poll(timeout_ms=50)
            return len(consumer.assignment()) == 3

        until(joined, "the consumer has its partitions", 30)
        (member,) = kohort("groups", "members", group, "--json").json
        assert (member["client_id"], member["partitions"]) == ("watched", 3)
        refused = kohort("groups", "reset-offsets", group, "--topic", topic, "--to-earliest", "--execute")
        assert refused.code == 1
        assert "has 1 member: " in refused.err
        deleted = kohort("groups", "delete-offsets", group, "--topic", topic, "--execute")
        assert deleted.code == 1
        assert "GROUP_SUBSCRIBED_TO_TOPIC" in deleted.err
        busy = kohort("groups", "delete", group, "--execute")
        assert busy.code == 1
        assert "NON_EMPTY_GROUP" in busy.err


def test_reset_previews_then_executes(kohort: Kohort, servers: str, topic: str, group: str) -> None:
    fill(servers, topic, 20)
    preview = kohort("groups", "reset-offsets", group, "--topic", f"{topic}:0", "--to-latest", "--json")
    assert preview.code == 1
    assert [(row["committed"], row["new"]) for row in preview.json] == [(0, 20)]
    assert "--execute" in preview.err
    assert committed(servers, group)[TopicPartition(topic, 0)] == 0

    assert kohort("groups", "reset-offsets", group, "--topic", f"{topic}:0", "--to-latest", "--execute").code == 0
    assert committed(servers, group)[TopicPartition(topic, 0)] == 20
    assert kohort("groups", "reset-offsets", group, "--topic", f"{topic}:0", "--shift-by", "-5", "--execute").code == 0
    assert committed(servers, group)[TopicPartition(topic, 0)] == 15
    far = ("--to-offset", "1000000", "--execute")
    assert kohort("groups", "reset-offsets", group, "--topic", f"{topic}:0", *far).code == 0
    assert committed(servers, group)[TopicPartition(topic, 0)] == 20
    past = ("--to-datetime", "2001-01-01T00:00:00", "--execute")
    assert kohort("groups", "reset-offsets", group, "--all-topics", *past).code == 0
    assert committed(servers, group)[TopicPartition(topic, 0)] == 0


def test_reset_by_file(kohort: Kohort, servers: str, topic: str, group: str, tmp_path: Path) -> None:
    fill(servers, topic, 9)
    exported = kohort("groups", "reset-offsets", group, "--topic", f"{topic}:0", "--to-latest", "--export")
    assert exported.out == f"{topic},0,9\n"
    plan = tmp_path / "plan.csv"
    plan.write_text(exported.out)
    assert kohort("groups", "reset-offsets", group, "--from-file", str(plan), "--execute").code == 0
    assert committed(servers, group)[TopicPartition(topic, 0)] == 9
    plan.write_text("nonsense\n")
    wrong = kohort("groups", "reset-offsets", group, "--from-file", str(plan), "--execute")
    assert wrong.code == 2
    assert "line 1" in wrong.err


def test_offsets_and_group_are_deleted(kohort: Kohort, servers: str, topic: str, group: str) -> None:
    preview = kohort("groups", "delete-offsets", group, "--topic", f"{topic}:0,1")
    assert preview.code == 1
    assert len(committed(servers, group)) == 3
    assert kohort("groups", "delete-offsets", group, "--topic", f"{topic}:0,1", "--execute").code == 0
    assert list(committed(servers, group)) == [TopicPartition(topic, 2)]
    assert kohort("groups", "delete", group).code == 1
    assert kohort("groups", "delete", group, "--execute").code == 0
    missing = kohort("groups", "describe", group)
    assert missing.code == 1
    assert "GROUP_ID_NOT_FOUND" in missing.err


def test_clone_previews_then_executes(kohort: Kohort, servers: str, topic: str, group: str) -> None:
    fill(servers, topic, 20)
    copy = f"{group}-copy"
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with Admin(servers) as admin:
        noted = {first: OffsetAndMetadata(17, "by hand")}
        admin.alter_consumer_group_offsets(group, noted).all()
    preview = kohort("groups", "clone", group, copy, "--json")
    assert preview.code == 1
    assert [(row["group"], row["partition"], row["committed"], row["new"]) for row in preview.json] == [
        (copy, 0, None, 17),
        (copy, 1, None, 0),
        (copy, 2, None, 0),
    ]
    assert "--execute" in preview.err
    assert committed(servers, copy) == {}
    assert kohort("groups", "clone", group, copy, "--topic", f"{topic}:0", "--execute").code == 0
    assert committed(servers, copy) == {first: 17}
    with Admin(servers) as admin:
        assert admin.list_consumer_group_offsets(copy).all()[first].metadata == "by hand"
    assert kohort("groups", "clone", group, copy, "--execute").code == 0
    assert committed(servers, copy)[second] == 0
    missing = kohort("groups", "clone", "nowhere", copy, "--execute")
    assert missing.code == 1
    assert "nowhere" in missing.err
    with Consumer(servers, group_id=copy, heartbeat_interval_ms=200) as consumer:
        consumer.subscribe([topic])
        until(lambda: bool(consumer.poll(50) or consumer.assignment()), "the consumer has its partitions", 30)
        busy = kohort("groups", "clone", group, copy, "--execute")
    assert busy.code == 1
    assert "has 1 member: " in busy.err


def test_watch_writes_a_line_for_each_look(kohort: Kohort, servers: str, topic: str, group: str) -> None:
    fill(servers, topic, 20)
    said = kohort("groups", "watch", group, "--json", "--interval", "200", "--timeout", "3000")
    assert said.code == 0
    looks = [json.loads(line) for line in said.out.splitlines()]
    assert len(looks) >= 2
    assert [(row["partition"], row["lag"]) for row in looks[-1]["groups"][0]["partitions"]] == [(0, 20), (1, 0), (2, 0)]
    assert [look["groups"][0]["partitions"][0]["rate"] for look in looks[:2]] == [None, 0.0]
    plain = kohort("groups", "watch", group, "--timeout", "0")
    assert plain.code == 0
    assert plain.out.splitlines()[0].split()[:3] == ["GROUP", "TOPIC", "PARTITION"]


def test_watch_tells_members_that_join_and_leave(our_broker: Broker, topic_of_ours: str) -> None:
    """One JSON line for each look, whose changes name the member, the partition and the status."""
    group, servers = f"{topic_of_ours}-group", our_broker.bootstrap_servers
    command = [Path(sys.executable).with_name("kohort"), "groups", "watch", group, "--json", "--interval", "100"]
    with subprocess.Popen(
        [*command, "--bootstrap-server", servers], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as child:
        assert child.stdout is not None
        looks = (json.loads(line) for line in child.stdout)

        def seen(kind: str, text: str) -> bool:
            return any(
                change["kind"] == kind and text in change["text"] and change["group"] == group
                for look in looks
                for change in look["changes"]
            )

        next(looks)
        with Consumer(servers, group_id=group, client_id="watched", auto_offset_reset="earliest") as consumer:
            consumer.subscribe([topic_of_ours])
            consumer.poll(20_000)
            assert seen("created", "the group is there")
            assert any("watched" in json.dumps(look["groups"]) for look in looks), "a look may come before the member"
        assert seen("left", "watched at")
        child.send_signal(signal.SIGINT)
        child.stdout.read()
        assert child.wait(20) == 0


def test_watch_continues_without_the_group(kohort: Kohort) -> None:
    said = kohort("groups", "watch", "not-there-yet", "--json", "--interval", "50", "--timeout", "4000")
    assert said.code == 1
    looks = [json.loads(line) for line in said.out.splitlines()]
    assert len(looks) >= 2
    assert "GROUP_ID_NOT_FOUND" in looks[0]["errors"]["not-there-yet"]


@pytest.mark.parametrize("columns", ["160", "80"])
def test_watch_draws_a_table_until_ctrl_c(our_broker: Broker, topic_of_ours: str, columns: str) -> None:
    """On a terminal, with a member that commits while it is watched. A narrow one has whole names in fewer columns."""
    group = f"{topic_of_ours}-group"
    master, slave = os.openpty()
    os.set_blocking(master, False)
    command = [Path(sys.executable).with_name("kohort"), "groups", "watch", group, "--interval", "100"]
    env = {**os.environ, "TERM": "xterm", "COLUMNS": columns, "LINES": "40"}
    seen = b""

    def shows(pattern: str) -> bool:
        nonlocal seen
        with contextlib.suppress(BlockingIOError):
            seen += os.read(master, 100_000)
        return (
            re.search(pattern, re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", seen.decode(errors="replace")), re.MULTILINE)
            is not None
        )

    servers = our_broker.bootstrap_servers
    with (
        Consumer(servers, group_id=group, client_id="watched", auto_offset_reset="earliest") as consumer,
        subprocess.Popen([*command, "--bootstrap-server", servers], stdin=slave, stdout=slave, env=env) as child,
    ):
        os.close(slave)
        consumer.subscribe([topic_of_ours])
        consumer.poll(20_000)
        consumer.commit()
        until(lambda: shows(rf"^\W*{topic_of_ours} .* watched "), "the topic and the member are shown", 30)
        until(lambda: shows(rf"^{group}  .*  1 member  lag "), "the group is shown")
        assert not shows("Group") and shows("Log start") == (columns == "160")
        child.send_signal(signal.SIGINT)
        assert child.wait(20) == 0
    os.close(master)


@pytest.fixture
def topic_of_ours(our_broker: Broker) -> str:
    name = f"cli-{uuid.uuid4().hex[:8]}"
    fill(our_broker.bootstrap_servers, name, 10)
    return name


@pytest.mark.parametrize(
    "args",
    [
        ("groups", "describe"),
        ("groups", "watch"),
        ("groups", "watch", "g", "--all-groups"),
        ("groups", "clone", "g"),
        ("groups", "clone", "g", "g"),
        ("groups", "reset-offsets", "g", "--topic", "t"),
        ("groups", "reset-offsets", "g", "--topic", "t", "--to-latest", "--to-earliest"),
        ("groups", "reset-offsets", "g", "--topic", "t", "--to-datetime", "yesterday"),
        ("topics", "create"),
        ("topics", "create", "x", "--partitions", "many"),
        ("topics", "alter", "x"),
        ("consume", "x", "--format", "parquet"),
        ("consume", "x", "--format", "xml"),
        ("nonsense",),
        ("topics", "nonsense"),
    ],
    ids=" ".join,
)
def test_wrong_use_is_an_error_of_one_line(args: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*args]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("kohort: ")
    assert captured.err.count("\n") == 1


COMMANDS = (
    ("topics", "list"),
    ("topics", "describe", "x"),
    ("topics", "create", "x"),
    ("topics", "delete", "x"),
    ("topics", "alter", "x", "--partitions", "3"),
    ("groups", "list"),
    ("groups", "describe", "g"),
    ("groups", "members", "g"),
    ("groups", "lag", "g"),
    ("groups", "watch", "g"),
    ("groups", "reset-offsets", "g", "--all-topics", "--to-earliest"),
    ("groups", "delete-offsets", "g", "--topic", "x"),
    ("groups", "delete", "g"),
    ("groups", "clone", "g", "h"),
    ("produce", "x"),
    ("consume", "x"),
)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_gives_up_soon_with_address_and_cause(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command, "--bootstrap-server", "127.0.0.1:1", "--timeout", "300"]) == 1
    captured = capsys.readouterr()
    assert "kohort: gave up after 300 ms: no broker can be reached (127.0.0.1:1: connection refused)" in captured.err
    assert captured.out == ""


def test_without_a_timeout_a_command_gives_up_within_five_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["groups", "list", "--bootstrap-server", "127.0.0.1:1"]) == 1
    assert "kohort: gave up after 4000 ms: no broker can be reached" in capsys.readouterr().err


def test_a_timeout_bounds_calls_too(our_broker: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    """A cluster that is reached has the time that calls have, not the little that reaching it has."""
    our_broker.faults.add(Fault("ListGroups", "drop", times=None))
    try:
        assert run(["groups", "list", "--bootstrap-server", our_broker.bootstrap_servers, "--timeout", "700"]) == 1
    finally:
        our_broker.faults.clear()
    assert "700 ms" in capsys.readouterr().err


def test_an_address_that_no_option_names_is_reported_with_its_origin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = tmp_path / "client.properties"
    settings.write_text("bootstrap.servers=127.0.0.1:1\n")
    for given, origin in (
        (["--command-config", str(settings)], f"; the address is bootstrap.servers of {settings}"),
        ([], "; the address is $KOHORT_BOOTSTRAP_SERVER"),
        (["--bootstrap-server", "127.0.0.1:1"], ""),
    ):
        monkeypatch.setenv("KOHORT_BOOTSTRAP_SERVER", "127.0.0.1:1")
        assert run(["topics", "list", "--timeout", "200", *given]) == 1
        assert f"(127.0.0.1:1: connection refused){origin} [REQUEST_TIMED_OUT]\n" in capsys.readouterr().err
    monkeypatch.delenv("KOHORT_BOOTSTRAP_SERVER")
    monkeypatch.setattr("kohort.cli.common.DEFAULT_BOOTSTRAP_SERVER", "127.0.0.1:1")
    assert run(["topics", "list", "--timeout", "200"]) == 1
    assert "; no --bootstrap-server is given, and this is the default [" in capsys.readouterr().err


def test_command_config_with_unknown_property(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = tmp_path / "client.properties"
    settings.write_text("client.idd=x\n")
    assert run(["topics", "list", "--command-config", str(settings)]) == 2
    assert "client.id" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "word", "reported"),
    [
        ("--state", "Stabel", "did you mean Stable?"),
        ("--state", "empty,compltingrebalance", "did you mean CompletingRebalance?"),
        ("--type", "consumr", "did you mean Consumer?"),
        ("--type", "xyz", "there are Classic, Consumer, Share, Streams"),
        ("--protocol", "conect", "did you mean connect?"),
    ],
)
def test_a_filter_that_can_not_be_names_the_nearest(kohort: Kohort, option: str, word: str, reported: str) -> None:
    said = kohort("groups", "list", option, word)
    assert (said.code, said.out) == (2, "")
    assert reported in said.err


def test_filters_choose(kohort: Kohort, group: str) -> None:
    def listed(*filters: str) -> set[str]:
        return {row["group"] for row in kohort("groups", "list", "--json", *filters).json}

    for filters in (
        ("--state", "empty"),
        ("--state", "Stable,EMPTY"),
        ("--type", "classic"),
        ("--type", "Classic,consumer"),
    ):
        assert group in listed(*filters), filters
    for filters in (("--state", "Stable"), ("--type", "consumer"), ("--protocol", "connect")):
        assert group not in listed(*filters), filters


def test_names_that_are_not_there_bring_the_nearest(kohort: Kohort, topic: str, group: str) -> None:
    for command in (("groups", "describe"), ("groups", "lag"), ("groups", "members"), ("groups", "delete")):
        said = kohort(*command, f"{group}x")
        assert said.code == 1
        assert f"did you mean {group}?" in said.err
        assert (said.out, said.err.splitlines()[1:]) == ("", ["More: kohort explain GROUP_ID_NOT_FOUND"])
    deleted = kohort("groups", "delete-offsets", f"{group}x", "--topic", topic)
    assert (deleted.code, f"did you mean {group}?" in deleted.err) == (1, True)
    for command in (
        ("topics", "describe"),
        ("topics", "delete"),
        ("consume",),
        ("topics", "alter", "--partitions", "9"),
    ):
        said = kohort(*command, f"{topic}x")
        assert said.code == 1
        assert f"did you mean {topic}?" in said.err


@pytest.mark.parametrize(
    "command",
    [
        ("topics", "alter", "{topic}", "--config", "retention.mss=1"),
        ("topics", "alter", "{topic}", "--delete-config", "retention.mss"),
        ("topics", "create", "{topic}-2", "--config", "retention.mss=1"),
    ],
    ids=" ".join,
)
def test_a_property_that_is_not_there_brings_the_nearest(
    our_broker: Broker, topic_of_ours: str, command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    given = [word.format(topic=topic_of_ours) for word in command]
    assert run([*given, "--bootstrap-server", our_broker.bootstrap_servers]) == 1
    assert "did you mean retention.ms?" in capsys.readouterr().err
