"""Changes of groups from the dashboard, over HTTP at a real broker: previews, tokens, what is refused, the log."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.dashboard.conftest import Dashboard, behind
from tests.support.nursery import run_command
from tests.support.processes import KOHORT, Start
from tests.support.waiting import until

from kohort import Admin, Broker, Consumer, TopicPartition
from kohort.broker.server.fault_kinds import Fault
from kohort.errors import ErrorCode, TimedOutError

pytest.importorskip("uvicorn", reason="the extra `dashboard` is not installed")

from kohort.dashboard import group_changes
from kohort.dashboard.cluster_lookups import BusyError
from kohort.dashboard.group_changes import ChangedMeanwhileError, GroupChanges, PreviewBody
from kohort.dashboard.guard import DashboardAccess
from kohort.dashboard.logins import DashboardLogins, DashboardUsers

Serve = Callable[..., Dashboard]
OPEN = DashboardAccess(allows_changes=True)


@pytest.fixture
def board(serve: Serve, our_broker: Broker, name: str) -> Dashboard:
    """A dashboard with changes and without a login, and a group that is 3 and 0 far in a topic of its name."""
    behind(our_broker.bootstrap_servers, name, name)
    return serve(our_broker.bootstrap_servers, access=OPEN)


def committed(broker: Broker, group: str) -> list[int | None]:
    with Admin(broker.bootstrap_servers) as admin:
        found = admin.list_consumer_group_offsets(group).all()
    return [at.offset if (at := found.get(TopicPartition(group, number))) else None for number in (0, 1)]


def commit(broker: Broker, group: str, offset: int) -> None:
    with Admin(broker.bootstrap_servers) as admin:
        admin.alter_consumer_group_offsets(group, {TopicPartition(group, 0): offset}).all()


def previewed(board: Dashboard, change: str, group: str, **more: object) -> Any:
    status, _, answer = board.post("preview", {"change": change, "group": group, **more})
    assert status == 200, answer
    return answer


def by_command(broker: Broker, *words: str) -> Any:
    command = [*KOHORT, "groups", *words, "--json", "--bootstrap-server", broker.bootstrap_servers]
    shown = run_command(command, 120)
    assert "this was a preview" in shown.stderr, shown.stderr
    return json.loads(shown.stdout)


# -- Previews, and what they lead to


@pytest.mark.parametrize(
    ("goal", "value", "words", "then"),
    [
        ("earliest", None, ("--to-earliest",), [0, 0]), ("latest", None, ("--to-latest",), [10, 0]),
        ("current", None, ("--to-current",), [3, 0]), ("offset", 7, ("--to-offset", "7"), [7, 0]),
        ("shift", -2, ("--shift-by", "-2"), [1, 0]), ("duration", "PT1S", ("--by-duration", "PT1S"), None),
        ("datetime", "2020-01-31T12:00:00", ("--to-datetime", "2020-01-31T12:00:00"), [0, 0]),
    ],
)  # fmt: skip
def test_reset_has_the_command_s_preview_and_is_done_as_it_says(
    board: Dashboard, our_broker: Broker, name: str, goal: str, value: object, words: tuple[str, ...],
    then: list[int] | None,
) -> None:  # fmt: skip
    found = previewed(board, "reset-offsets", name, goal=goal, value=value)
    if then is not None:
        assert found["rows"] == by_command(our_broker, "reset-offsets", name, "--all-topics", *words)
    assert committed(our_broker, name) == [3, 0], "a preview changes nothing"
    status, _, made = board.post("change", {"token": found["token"]})
    assert (status, made["errors"]) == (200, [])
    assert made["rows"] == [{**row, "done": True} for row in found["rows"]]
    assert committed(our_broker, name) == [row["new"] for row in found["rows"]]
    assert then is None or committed(our_broker, name) == then


def test_reset_of_some_partitions_leaves_the_others(board: Dashboard, our_broker: Broker, name: str) -> None:
    found = previewed(board, "reset-offsets", name, goal="latest", topics=[f"{name}:1"])
    assert [row["partition"] for row in found["rows"]] == [1]
    assert board.post("change", {"token": found["token"]})[0] == 200
    assert committed(our_broker, name) == [3, 0]


def test_offsets_and_group_are_deleted_as_previewed(board: Dashboard, our_broker: Broker, name: str) -> None:
    found = previewed(board, "delete-offsets", name, topics=[f"{name}:1"])
    assert found["rows"] == by_command(our_broker, "delete-offsets", name, "--topic", f"{name}:1")
    made = board.post("change", {"token": found["token"]})[2]
    assert [row["done"] for row in made["rows"]] == [True] and committed(our_broker, name) == [3, None]
    found = previewed(board, "delete", name)
    assert found["rows"] == by_command(our_broker, "delete", name)
    made = board.post("change", {"token": found["token"]})[2]
    assert made == {"rows": [{**found["rows"][0], "done": True}], "errors": []}
    with Admin(our_broker.bootstrap_servers) as admin:
        assert name not in {group.group_id for group in admin.list_groups()}


def test_group_with_members_is_previewed_without_a_token(board: Dashboard, our_broker: Broker, name: str) -> None:
    with Consumer(our_broker.bootstrap_servers, group_id=name, enable_auto_commit=False) as consumer:
        consumer.subscribe([name])
        until(lambda: bool(consumer.poll(50) or consumer.assignment()), "the consumer has its partitions")
        for change, more in (("reset-offsets", {"goal": "latest"}), ("delete", {})):
            found = previewed(board, change, name, **more)
            assert found["token"] is None and "has 1 member: " in found["errors"][0]
        found = previewed(board, "delete-offsets", name, topics=[name])
        made = board.post("change", {"token": found["token"]})[2]
        assert [row["done"] for row in made["rows"]] == [False, False] and len(made["errors"]) == 2
    assert committed(our_broker, name) == [3, 0]


# -- Answers that are lost


@pytest.mark.parametrize(
    ("api", "action", "change", "more"),
    [
        ("OffsetCommit", "drop_reply", "reset-offsets", {"goal": "latest"}),
        ("OffsetDelete", "drop_reply", "delete-offsets", {"topics": ["name"]}),
        ("DeleteGroups", "drop_reply", "delete", {}),
        ("DeleteGroups", "close_after", "delete", {}),
    ],
)
def test_change_whose_answer_is_lost_may_have_been_done(
    serve: Serve, name: str, caplog: pytest.LogCaptureFixture, api: str, action: str, change: str, more: dict[str, Any]
) -> None:
    with Broker() as broker:
        behind(broker.bootstrap_servers, name, name)
        board = serve(broker.bootstrap_servers, access=OPEN, limit_ms=3_000)
        if "topics" in more:
            more = {"topics": [name]}
        found = previewed(board, change, name, **more)
        broker.faults.add(Fault(api, action, times=1))
        with caplog.at_level("INFO", "kohort.dashboard"):
            status, _, made = board.post("change", {"token": found["token"]})
        assert status == 200, made
        assert made["rows"] == [{**row, "done": None} for row in found["rows"]]
        assert all("may have" in error for error in made["errors"]) and len(made["errors"]) == 1
        logged = f"[group {name}][user (no login)] {change}: change may have been made, its outcome is unknown: "
        assert logged in caplog.text
        assert f"{change}: change refused" not in caplog.text
        with Admin(broker.bootstrap_servers) as admin:
            groups = {group.group_id for group in admin.list_groups()}
            offsets = admin.list_consumer_group_offsets(name).all() if name in groups else {}
        if change == "reset-offsets":
            assert offsets[TopicPartition(name, 0)].offset == 10
        else:
            assert not offsets, "the change was made"


def test_token_still_counts_when_the_change_was_not_begun(name: str) -> None:
    with Broker() as broker:
        servers = broker.bootstrap_servers
        behind(servers, name, name)
        is_busy = False

        def admin() -> Admin:
            if is_busy:
                raise BusyError("the dashboard is asked for too much of the cluster at once: try again")
            return Admin(servers, **{"default.api.timeout.ms": 3_000})

        changes = GroupChanges(admin)
        token = changes.preview(PreviewBody("reset-offsets", name, goal="latest"), "")["token"]
        is_busy = True
        with pytest.raises(BusyError):
            changes.confirm(token, "", None)
        with pytest.raises(ChangedMeanwhileError):  # a token that is none asks for no look-up
            changes.confirm("made-up", "", None)
        is_busy = False
        broker.faults.add(Fault("OffsetFetch", "drop", times=None))
        with pytest.raises(TimedOutError):
            changes.confirm(token, "", None)
        broker.faults.clear()
        assert committed(broker, name) == [3, 0]
        assert [row["done"] for row in changes.confirm(token, "", None)["rows"]] == [True, True]
        assert committed(broker, name) == [10, 0]
        with pytest.raises(ChangedMeanwhileError):
            changes.confirm(token, "", None)


def test_waiting_previews_are_bounded_by_rows_and_age(
    our_broker: Broker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    behind(our_broker.bootstrap_servers, name, name)
    now_s = 0.0
    changes = GroupChanges(lambda: Admin(our_broker.bootstrap_servers), lambda: now_s)

    def token(goal: Any = "latest") -> Any:
        return changes.preview(PreviewBody("reset-offsets", name, goal=goal), "")["token"]

    monkeypatch.setattr(group_changes, "PREVIEW_ROWS_MAX", 5)
    first, second = token(), token()
    assert changes.waiting_rows == 4
    third = token()
    assert changes.waiting_rows == 4
    with pytest.raises(ChangedMeanwhileError, match="no such preview"):
        changes.confirm(first, "", None)
    assert changes.confirm(second, "", None)["rows"]
    assert changes.waiting_rows == 2
    now_s = group_changes.PREVIEW_S
    fourth = token()
    assert changes.waiting_rows == 2, "the third is too old"
    with pytest.raises(ChangedMeanwhileError, match="no such preview"):
        changes.confirm(third, "", None)
    changes.preview(PreviewBody("delete-offsets", name, [name]), "")
    assert changes.waiting_rows == 4
    assert changes.confirm(fourth, "", None)["errors"] == []


# -- Confirmations that are refused


@pytest.mark.parametrize("change", ["reset-offsets", "delete-offsets", "delete"])
@pytest.mark.parametrize("event", ["commit", "member", "deletion", "offsets deleted"])
def test_change_is_refused_when_the_group_has_changed_since_the_preview(
    board: Dashboard, our_broker: Broker, name: str, change: str, event: str
) -> None:
    more: dict[str, object] = {"reset-offsets": {"goal": "earliest"}, "delete-offsets": {"topics": [name]}}.get(
        change, {}
    )
    token = previewed(board, change, name, **more)["token"]
    with (
        Admin(our_broker.bootstrap_servers) as admin,
        Consumer(our_broker.bootstrap_servers, group_id=name) as consumer,
    ):
        if event == "commit":
            commit(our_broker, name, 5)
        elif event == "member":
            consumer.subscribe([name])
            until(lambda: bool(consumer.poll(50) or consumer.assignment()), "the consumer has its partitions")
        elif event == "deletion":
            admin.delete_consumer_groups([name]).all()
        else:
            admin.delete_consumer_group_offsets(name, [TopicPartition(name, 1)]).all()
        before = None if event == "deletion" else committed(our_broker, name)
        status, _, answer = board.post("change", {"token": token})
        assert status == 409 and "has changed since the preview" in answer["error"]
        assert before is None or committed(our_broker, name) == before
        assert event != "deletion" or name not in {group.group_id for group in admin.list_groups()}
    assert board.post("change", {"token": token})[0] == 409


def test_change_is_refused_when_its_offset_has_gone(board: Dashboard, our_broker: Broker, name: str) -> None:
    token = previewed(board, "reset-offsets", name, goal="earliest")["token"]
    with Admin(our_broker.bootstrap_servers) as admin:
        admin.delete_records({TopicPartition(name, 0): 6}).all()
    status, _, answer = board.post("change", {"token": token})
    assert status == 409 and "has no offset 0 any more" in answer["error"]
    assert committed(our_broker, name) == [3, 0]


def test_token_counts_once_and_for_a_time_and_made_up_ones_do_not(
    board: Dashboard, our_broker: Broker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = previewed(board, "reset-offsets", name, goal="latest")["token"]
    assert [board.post("change", {"token": token})[0] for _ in range(2)] == [200, 409]
    commit(our_broker, name, 3)
    for made_up in ("", "x", "\u00e9", token):
        assert board.post("change", {"token": made_up})[0] == 409
    monkeypatch.setattr(group_changes, "PREVIEW_S", 0.0)
    token = previewed(board, "reset-offsets", name, goal="latest")["token"]
    status, _, answer = board.post("change", {"token": token})
    assert status == 409 and "older than" in answer["error"]
    monkeypatch.setattr(group_changes, "PREVIEW_S", 300.0)
    monkeypatch.setattr(group_changes, "PREVIEWS_MAX", 1)
    first, second = (previewed(board, "reset-offsets", name, goal="latest")["token"] for _ in range(2))
    assert [board.post("change", {"token": token})[0] for token in (first, second)] == [409, 200]


def test_token_belongs_to_its_session_and_the_log_names_user_and_change(
    serve: Serve, our_broker: Broker, name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    behind(our_broker.bootstrap_servers, name, name)
    (tmp_path / "users").write_text("alice=secret-1\nbob=secret-2\n")
    logins = DashboardLogins(DashboardUsers(tmp_path / "users"))
    board = serve(our_broker.bootstrap_servers, access=DashboardAccess(logins, allows_changes=True))
    body = {"change": "reset-offsets", "group": name, "goal": "latest"}
    assert board.post("preview", body)[0] == 401 and board.post("change", {"token": "x"})[0] == 401
    alice, bob = (
        board.post("login", {"user": user, "password": word})[1]["set-cookie"].partition(";")[0]
        for user, word in (("alice", "secret-1"), ("bob", "secret-2"))
    )
    token = board.post("preview", body, cookie=alice)[2]["token"]
    assert board.post("change", {"token": token}, cookie=bob)[0] == 409
    assert committed(our_broker, name) == [3, 0]
    with caplog.at_level("INFO", "kohort.dashboard"):
        assert board.post("change", {"token": token}, cookie=alice)[0] == 200
    assert f"[group {name}][user alice] reset-offsets: change made: {name}-0 3 -> 10; {name}-1 0 -> 0" in caplog.text
    with caplog.at_level("INFO", "kohort.dashboard"):
        token = board.post("preview", body, cookie=alice)[2]["token"]
        commit(our_broker, name, 1)
        assert board.post("change", {"token": token}, cookie=alice)[0] == 409
    assert f"[group {name}][user alice] reset-offsets: change refused: group" in caplog.text


def test_change_of_another_page_is_refused(board: Dashboard, our_broker: Broker, name: str) -> None:
    token = previewed(board, "delete", name)["token"]
    body = {"token": token}
    for headers in (
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": ""},
        {"sec_fetch_site": "same-site"},
    ):
        assert board.post("change", body, **headers)[0] == 403
    assert board.post("change", body, host="evil.example", Origin="http://evil.example")[0] == 421
    assert board.post("change", body, **{"Content-Type": "text/plain"})[0] == 415
    assert board.send(f"/api/change?token={token}")[0] == 405
    assert committed(our_broker, name) == [3, 0]
    assert board.post("change", body)[0] == 200, "its own page may"


def test_without_the_flag_the_routes_do_not_exist(serve: Serve, our_broker: Broker, name: str) -> None:
    behind(our_broker.bootstrap_servers, name, name)
    board = serve(our_broker.bootstrap_servers)
    for path in ("preview", "change"):
        assert board.post(path, {"change": "delete", "group": name})[0] == 405
        assert board.send(f"/api/{path}")[0] == 404
    assert board.get("session")["changes"] is False


@pytest.mark.parametrize(
    "body",
    [
        {}, {"change": "delete"}, {"change": "drop", "group": "g"}, {"change": "delete", "group": ""},
        {"change": "delete", "group": "g", "topics": ["t"]}, {"change": "delete", "group": "g", "goal": "latest"},
        {"change": "delete-offsets", "group": "g"}, {"change": "delete-offsets", "group": "g", "topics": [""]},
        {"change": "reset-offsets", "group": "g"}, {"change": "reset-offsets", "group": "g", "goal": "offset"},
        {"change": "reset-offsets", "group": "g", "goal": "latest", "value": 1},
        {"change": "reset-offsets", "group": "g", "goal": "offset", "value": -1},
        {"change": "reset-offsets", "group": "g", "goal": "offset", "value": True},
        {"change": "reset-offsets", "group": "g", "goal": "shift", "value": "1"},
        {"change": "reset-offsets", "group": "g", "goal": "datetime", "value": "yesterday"},
        {"change": "reset-offsets", "group": "g", "goal": "duration", "value": "long"},
        {"change": "reset-offsets", "group": "g", "goal": "duration", "value": f"P{'9' * 400}D"},
        {"change": "delete", "group": "g", "more": 1}, {"change": "delete", "group": "g", "topics": ["t"] * 101},
    ],
)  # fmt: skip
def test_request_that_describes_no_change_is_refused(serve: Serve, our_broker: Broker, body: dict[str, object]) -> None:
    assert serve(our_broker.bootstrap_servers, access=OPEN).post("preview", body)[0] == 400


def test_what_is_not_there_is_named_and_nothing_is_made(board: Dashboard, our_broker: Broker, name: str) -> None:
    body = {"change": "reset-offsets", "group": f"{name}x", "goal": "earliest", "topics": [name]}
    status, _, answer = board.post("preview", body)
    assert status == 404 and name in answer["error"]
    for topics in ([f"{name}x"], [f"{name}:7"]):
        assert board.post("preview", {**body, "group": name, "topics": topics})[0] == 404
    assert board.post("preview", {**body, "group": name, "topics": [f"{name}:x"]})[0] == 400


def test_missing_right_is_said_and_cluster_that_is_away_too(serve: Serve, name: str) -> None:
    with Broker() as broker:
        behind(broker.bootstrap_servers, name, name)
        board = serve(broker.bootstrap_servers, access=OPEN)
        token = previewed(board, "delete", name)["token"]
        refused = Fault("DeleteGroups", "fail", times=None, error=ErrorCode.GROUP_AUTHORIZATION_FAILED)
        broker.faults.add(refused)
        made = board.post("change", {"token": token})[2]
        assert [row["done"] for row in made["rows"]] == [False]
        assert "GROUP_AUTHORIZATION_FAILED" in made["errors"][0]
    status, _, answer = board.post("preview", {"change": "delete", "group": name})
    assert status == 503 and answer["error"]


def test_command_with_the_flag_has_the_routes(start: Start, our_broker: Broker) -> None:
    process = start(
        "dashboard", "--listen", "127.0.0.1:0", "--bootstrap-server", our_broker.bootstrap_servers, "--allow-changes"
    )
    assert process.stdout is not None
    address = process.stdout.readline().split()[1].removeprefix("http://").rstrip("/")

    class Found(Dashboard):
        def __init__(self) -> None:
            self.server = type("Server", (), {"address": address})()

    assert Found().get("session") == {"login": False, "user": None, "changes": True}
    assert Found().post("preview", {"change": "delete", "group": "nobody-at-all"})[0] == 404
