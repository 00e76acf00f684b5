"""`kohort groups reset-offsets`: what is not had as asked is told; several groups at once; export."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from tests.cli.running import Kohort, Said, committed, fill

from kohort import Admin, Broker, Consumer, TopicPartition
from kohort.broker.server.fault_kinds import Fault
from kohort.cli.app import run
from kohort.cli.group_changes import format_plan_lines, read_offset_plan
from kohort.client.admin.group_changes import ResetTarget, parse_reset_target
from kohort.client.admin.values import NewTopic
from kohort.client.offsets import AFTER_LOST_ANSWER, OffsetAndMetadata
from kohort.errors import ErrorCode


@pytest.fixture
def part(servers: str, topic: str) -> str:
    """Partition 0 with offsets 10 to 20, as an option names it."""
    fill(servers, topic, 20)
    with Admin(servers) as admin:
        admin.delete_records({TopicPartition(topic, 0): 10}).all()
    return f"{topic}:0"


def test_a_refused_reset_says_only_why(kohort: Kohort, servers: str, group: str, topic: str) -> None:
    fill(servers, topic, 1)
    asked = ("groups", "reset-offsets", group, "--topic", topic, "--to-earliest")
    with Consumer(servers, group_id=group, auto_offset_reset="earliest") as consumer:
        consumer.subscribe([topic])
        while not consumer.poll(timeout_ms=1000):
            pass
        said = kohort(*asked)
        as_json = kohort(*asked, "--json")
    assert (said.code, said.out) == (1, "")
    assert f"group '{group}' has 1 member: stop it first, or it would overwrite the offsets" in said.err
    assert (as_json.code, as_json.json) == (1, [])


@pytest.mark.parametrize(
    ("goal", "requested", "new", "reported"),
    [
        (("--to-offset", "999999"), 999999, 20, "999999 is past the end 20"),
        (("--to-offset", "3"), 3, 10, "3 is before the first offset 10"),
        (("--to-offset", "15"), None, 15, None),
        (("--shift-by", "100"), 100, 20, "100 is past the end 20"),
        (("--shift-by", "-100"), -100, 10, "-100 is before the first offset 10"),
        (("--to-current",), 0, 10, "0 is before the first offset 10"),
        (("--to-datetime", "2999-01-01T00:00:00"), None, 20, "no record is that young: the end"),
        (("--to-datetime", "1950-01-01T00:00:00"), None, 10, None),
        (("--by-duration", "PT0S"), None, 20, "no record is that young: the end"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_an_offset_that_is_not_as_asked_is_reported(
    kohort: Kohort,
    group: str,
    part: str,
    goal: tuple[str, ...],
    requested: int | None,
    new: int,
    reported: str | None,
) -> None:
    asked = ("groups", "reset-offsets", group, "--topic", part, *goal)
    preview = kohort(*asked, "--json")
    assert preview.code == 1
    assert [(row["requested"], row["new"], row["note"]) for row in preview.json] == [(requested, new, reported)]
    table = kohort(*asked)
    assert (reported or "-") in table.out.splitlines()[1]
    exported = kohort(*asked, "--export")
    assert exported.out == f"{part.replace(':', ',')},{new}\n"
    assert (reported or "") in exported.err
    assert (reported is None) == (exported.err == "")
    done = kohort(*asked, "--execute", "--json")
    assert done.code == 0
    assert [(row["new"], row["note"], row["done"]) for row in done.json] == [(new, reported, True)]


def test_a_file_out_of_bounds_is_reported(kohort: Kohort, group: str, part: str, tmp_path: Path) -> None:
    plan = tmp_path / "plan.csv"
    plan.write_text(f'"{part.partition(":")[0]}",0,77\n')
    (row,) = kohort("groups", "reset-offsets", group, "--from-file", str(plan), "--json").json
    assert (row["requested"], row["new"], row["note"]) == (77, 20, "77 is past the end 20")


def test_export_is_no_refused_change(kohort: Kohort, servers: str, topic: str, group: str) -> None:
    fill(servers, topic, 9)
    exported = kohort("groups", "reset-offsets", group, "--topic", topic, "--to-latest", "--export")
    assert (exported.code, exported.err) == (0, "")
    assert exported.out == f"{topic},0,9\n{topic},1,0\n{topic},2,0\n"
    assert committed(servers, group)[TopicPartition(topic, 0)] == 0
    both = kohort("groups", "reset-offsets", group, "--topic", f"{topic}:0", "--to-latest", "--export", "--execute")
    assert (both.code, both.out) == (0, f"{topic},0,9\n")
    assert committed(servers, group)[TopicPartition(topic, 0)] == 9


def test_several_groups_and_topics_at_once(kohort: Kohort, servers: str, topic: str, tmp_path: Path) -> None:
    other, groups = f"{topic}-other", [f"{topic}-a", f"{topic}-b,c"]
    fill(servers, other, 4)
    fill(servers, topic, 7)
    with Admin(servers) as admin:
        for name in groups:
            admin.alter_consumer_group_offsets(name, {TopicPartition(topic, 0): OffsetAndMetadata(1)}).all()
    preview = kohort(
        "groups", "reset-offsets", *groups, "--topic", f"{topic}:0", "--topic", other, "--to-latest", "--json"
    )
    assert preview.code == 1
    rows = [(row["group"], row["topic"], row["partition"], row["new"]) for row in preview.json]
    assert {(group, name, number, new) for group, name, number, new in rows if number == 0} == {
        (group, name, 0, new) for group in groups for name, new in ((topic, 7), (other, 4))
    }
    asked = ("groups", "reset-offsets", *groups, "--all-topics", "--to-latest")
    exported = kohort(*asked, "--export")
    assert exported.code == 0
    assert exported.out.splitlines() == [f"{groups[0]},{topic},0,7", f'"{groups[1]}",{topic},0,7']
    assert kohort(*asked, "--execute").code == 0
    assert [committed(servers, name) for name in groups] == [{TopicPartition(topic, 0): 7}] * 2
    plan = tmp_path / "plan.csv"
    plan.write_text(exported.out.replace(",7", ",2"))
    assert kohort("groups", "reset-offsets", "--from-file", str(plan), "--execute").code == 0
    assert [committed(servers, name) for name in groups] == [{TopicPartition(topic, 0): 2}] * 2
    one = kohort("groups", "reset-offsets", groups[0], "--from-file", str(plan), "--json")
    assert {row["group"] for row in one.json} == {groups[0]}


def test_all_groups_leaves_those_with_members_and_says_so(kohort: Kohort, servers: str, topic: str, group: str) -> None:
    busy = f"{topic}-busy"
    fill(servers, topic, 3)
    with Consumer(servers, group_id=busy, auto_offset_reset="earliest") as consumer:
        consumer.subscribe([topic])
        consumer.poll(20_000)
        consumer.commit()
        said = kohort("groups", "reset-offsets", "--all-groups", "--topic", f"{topic}:0", "--to-latest", "--json")
    assert said.code == 1
    assert f"group '{busy}' has 1 member: " in said.err
    changed = {row["group"]: row["new"] for row in said.json}
    assert changed[group] == 3
    assert busy not in changed


def test_a_deleted_topic_leaves_the_others_to_be_set(kohort: Kohort, servers: str, topic: str, group: str) -> None:
    """Commits of a topic that is gone, as Kafka keeps them for a while when it goes in another way than by deletion."""
    fill(servers, topic, 3)
    asked = ("groups", "reset-offsets", group, "--to-latest", "--json")
    wrong = kohort(*asked, "--topic", topic, "--topic", f"{topic}-never")
    assert wrong.code == 1
    assert f"{topic}-never" in wrong.err


def test_nothing_committed_can_not_be_shifted(kohort: Kohort, servers: str, topic: str) -> None:
    """Kafka's own command does the same: without a committed offset the current one is the end, and it says so."""
    fill(servers, topic, 5)
    fresh = f"{topic}-fresh"
    shifted = kohort("groups", "reset-offsets", fresh, "--topic", f"{topic}:0", "--shift-by", "-2", "--execute")
    assert shifted.code == 1
    assert "there is no committed offset to shift from" in shifted.err
    assert committed(servers, fresh) == {}
    asked = ("groups", "reset-offsets", fresh, "--topic", f"{topic}:0", "--to-current")
    preview = kohort(*asked, "--json")
    assert [(row["new"], row["note"]) for row in preview.json] == [(5, "nothing was committed: the end")]
    assert f"group '{fresh}' is not there yet" in preview.err


def test_missing_group_is_reported_beside_a_wrong_topic(kohort: Kohort, topic: str, group: str) -> None:
    for wrong in (f"{topic}x", f"{topic}:9", f"{topic}:x"):
        said = kohort("groups", "reset-offsets", f"{group}s", "--topic", wrong, "--to-earliest")
        assert said.code != 0
        assert f"group '{group}s' is not there yet; did you mean {group}?" in said.err


def test_partition_that_is_not_there_is_named_with_those_that_are(kohort: Kohort, topic: str, group: str) -> None:
    said = kohort("groups", "reset-offsets", group, "--topic", f"{topic}:7", "--to-latest")
    expected = f"kohort: there is no partition 7 of {topic} here; it has 0, 1, 2 [RESOURCE_NOT_FOUND]"
    assert (said.code, said.out, said.err.splitlines()[:-1]) == (1, "", [expected])


@pytest.mark.parametrize(
    ("text", "at_ms"),
    [
        ("2026-01-31T12:00:00.001", 1_769_860_800_001),
        ("2026-01-31T12:00:00.0005", 1_769_860_800_001),  # the record of this millisecond is before it
        ("1970-01-01T01:00:00.001+01:00", 1),
        ("1972-02-19T13:44:18.851", 67_355_058_851),  # a float of its seconds is less
    ],
    ids=["millisecond", "less than a millisecond", "zone", "float"],
)
def test_time_of_a_reset_is_the_first_millisecond_that_is_not_before_it(text: str, at_ms: int) -> None:
    assert parse_reset_target({"datetime": text}) == ResetTarget("time", at_ms)


def test_endless_duration_is_wrong_use(kohort: Kohort, topic: str, group: str) -> None:
    said = kohort("groups", "reset-offsets", group, "--topic", topic, "--by-duration", f"P{'9' * 400}D")
    assert (said.code, "longer than any duration" in said.err) == (2, True)


@pytest.mark.parametrize(("action", "as_json"), [("drop_reply", True), ("close_after", True), ("close_after", False)])
def test_change_whose_answer_is_lost_may_have_been_done(
    our_broker: Broker, capsys: pytest.CaptureFixture[str], action: str, as_json: bool
) -> None:
    servers, name = our_broker.bootstrap_servers, f"lost-{uuid.uuid4().hex[:8]}"

    def command(api: str, *words: str) -> Said:
        our_broker.faults.add(Fault(api, action, times=None if action == "drop_reply" else 1))
        capsys.readouterr()
        more = ("--json",) if as_json else ()
        try:
            code = run(["groups", *words, "--execute", *more, "--bootstrap-server", servers, "--timeout", "3000"])
        finally:
            our_broker.faults.clear()
        captured = capsys.readouterr()
        return Said(code, captured.out, captured.err)

    with Admin(servers) as admin:
        admin.create_topics([NewTopic(name, 1, 1)]).all()
        admin.alter_consumer_group_offsets(name, {TopicPartition(name, 0): 0}).all()
        fill(servers, name, 3)
        said = [command("OffsetCommit", "reset-offsets", name, "--topic", name, "--to-latest")]
        assert committed(servers, name) == {TopicPartition(name, 0): 3}
        said.append(command("OffsetDelete", "delete-offsets", name, "--topic", name))
        if name in {group.group_id for group in admin.list_groups()}:
            assert committed(servers, name) == {}
        admin.alter_consumer_group_offsets(name, {TopicPartition(name, 0): 0}).all()
        said.append(command("DeleteGroups", "delete", name))
        assert name not in {group.group_id for group in admin.list_groups()}
    if action == "close_after":  # both are sent again, and find nothing wrong
        assert [(found.code, found.err) for found in said[:2]] == [(0, "")] * 2
        said = said[2:]
    for found in said:
        assert found.code == 1
        assert f"group '{name}' may have been " in found.err and "look again: " in found.err
        assert [row["done"] for row in found.json] == [None] if as_json else found.out == ""


@pytest.mark.parametrize(
    ("api", "error", "words"),
    [
        ("OffsetCommit", ErrorCode.UNKNOWN_MEMBER_ID, ("reset-offsets", "--topic", "NAME", "--to-latest")),
        ("OffsetDelete", ErrorCode.NON_EMPTY_GROUP, ("delete-offsets", "--topic", "NAME")),
        ("DeleteGroups", ErrorCode.NON_EMPTY_GROUP, ("delete",)),
    ],
    ids=["reset-offsets", "delete-offsets", "delete"],
)
@pytest.mark.parametrize("lost", [True, False], ids=["sent before", "never sent before"])
def test_refusal_of_a_repetition_says_nothing_of_the_first_try(
    our_broker: Broker,
    capsys: pytest.CaptureFixture[str],
    api: str,
    error: ErrorCode,
    words: tuple[str, ...],
    lost: bool,
) -> None:
    """The first was carried out and its answer lost; a member has joined before the second."""
    servers, name = our_broker.bootstrap_servers, f"twice-{uuid.uuid4().hex[:8]}"
    with Admin(servers) as admin:
        admin.create_topics([NewTopic(name, 1, 1)]).all()
        admin.alter_consumer_group_offsets(name, {TopicPartition(name, 0): 0}).all()
        fill(servers, name, 3)
        if lost:
            our_broker.faults.add(Fault(api, "close_after"))
        our_broker.faults.add(Fault(api, "fail", error=error))
        action, *more = [word.replace("NAME", name) for word in words]
        capsys.readouterr()
        try:
            run(["groups", action, name, *more, "--execute", "--json", "--bootstrap-server", servers])
        finally:
            our_broker.faults.clear()
        captured = capsys.readouterr()
        said = Said(1, captured.out, captured.err)
        assert [row["done"] for row in said.json] == [None if lost else False]
        assert (AFTER_LOST_ANSWER in said.err) == ("look again: " in said.err) == lost
        offsets = admin.list_consumer_group_offsets(name).values
        found = offsets[TopicPartition(name, 0)] if offsets else None
        before = found is not None and found.offset == 0
        assert before != lost, "the first was carried out"


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("t,0\n", "line 1"),
        ("t,0,1\nt,0,2\n", "line 2: t-0 is there twice"),
        ("t,0,-4\n", "line 1"),
        ("g,t,0,1\nt,0,1\n", "either every line names its group or none does"),
        ("", "no offsets"),
        ("a,g,t,0,1\n", "line 1"),
        ("\xff\n", "no text"),
        (f"t,0,1\n{'t' * 140_000},0,1\n", "line 2: field larger than field limit"),
        (",".join(["t" * 1_000] * 9) + "\n", f"line 1: {'t' * 100!r}… is no TOPIC"),
    ],
)
def test_a_bad_plan_is_wrong_use(text: str, reported: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tmp_path / "plan.csv"
    plan.write_bytes(text.encode("latin-1"))
    assert run(["groups", "reset-offsets", "g", "--from-file", str(plan)]) == 2
    assert reported in capsys.readouterr().err


NAMES = ("pay", " pay", "pay ", "\ufeffpay", "pa\ny", "pa\ry", "pa\r\ny", 'p"a,y', "'pay'", "=pay", "\tpay", "pay\x00")


def test_names_of_groups_survive_an_export(tmp_path: Path) -> None:
    """Everyone who may make a group names it. A name that was read as another one would reset that group's offsets."""
    rows = [{"group": name, "topic": "t", "partition": 0, "new": at} for at, name in enumerate(NAMES)]
    plan = tmp_path / "plan.csv"
    for order in (rows, rows[3:] + rows[:3]):
        plan.write_bytes(format_plan_lines(order, with_group=True).encode())
        found = read_offset_plan(plan)
        assert found == {name: {TopicPartition("t", 0): at} for at, name in enumerate(NAMES)}


def test_a_plan_without_groups_is_for_one(kohort: Kohort, topic: str, tmp_path: Path) -> None:
    plan = tmp_path / "plan.csv"
    plan.write_text(f"{topic},0,0\n")
    for groups in (("a", "b"), ("--all-groups",)):
        said = kohort("groups", "reset-offsets", *groups, "--from-file", str(plan))
        assert said.code == 2
        assert "one group" in said.err
    plan.write_text(f"mine,{topic},0,0\n")
    said = kohort("groups", "reset-offsets", "nine", "--from-file", str(plan))
    assert (said.code, "did you mean mine?" in said.err) == (2, True)
