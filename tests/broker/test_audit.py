"""The audit log: what it has, what it never has, and that it neither grows nor blocks."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from kohort import Admin, Broker
from kohort.broker import audit
from kohort.broker.audit import CHANGES, FILE, AuditedChange, AuditLog
from kohort.broker.authorization import CallerCopy, Resource
from kohort.broker.config.settings import broker_configs
from kohort.broker.security.principals import Principal
from kohort.client.admin.values import (
    Acl,
    AclFilter,
    AclPermission,
    AclResource,
    ConfigResource,
    NewTopic,
    ResourceType,
    ScramCredential,
)
from kohort.errors import ErrorCode, KafkaError
from kohort.ids import AclOperation
from kohort.wire.offsets import OffsetCommitRequest
from tests.broker.acl_cases import CLIENT_HOST, SETTINGS, Names, grant, prepare, take_over
from tests.broker.raw import RawClient, fetch
from tests.support.waiting import until

ALICE = CallerCopy(Principal("User", "alice"), "10.0.0.1", "app", "Fetch")
READ = AclOperation.READ


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def refuse(log: AuditLog, name: str = "t") -> None:
    log.record_refusal(ALICE, READ, Resource.TOPIC, name)


# -- the file


def test_entries_have_kafkas_words_and_only_the_owner_can_read_them(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / FILE, 1 << 20, 3)
    log.record_login("alice", "10.0.0.1", "SCRAM-SHA-512", False, "app")
    log.record_login(ALICE.principal, "10.0.0.1", "SCRAM-SHA-512", True)
    refuse(log)
    log.record_change(ALICE, AuditedChange("DELETE", "TOPIC", "t"))
    log.close_log()
    found = lines(tmp_path / FILE)
    assert all(entry.pop("time").endswith("Z") for entry in found)
    client = {"principal": "User:alice", "host": "10.0.0.1", "client_id": "app", "api": "Fetch"}
    login = {"event": "login", "host": "10.0.0.1", "api": "SaslAuthenticate", "details": "SCRAM-SHA-512"}
    topic = {"resource_type": "TOPIC", "resource": "t"}
    assert found == [
        {**login, "principal": "alice", "client_id": "app", "result": "failed"},
        {**login, "principal": "User:alice", "client_id": None, "result": "succeeded"},
        {"event": "refusal", **client, "operation": "READ", **topic, "result": "refused"},
        {"event": "change", **client, "operation": "DELETE", **topic, "result": "allowed"},
    ]
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600


def test_full_files_are_renamed_and_their_number_is_bounded(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / FILE, 4096, 3)
    for number in range(200):
        log.record_change(ALICE, AuditedChange("CREATE", "TOPIC", f"topic-{number}"))
    log.close_log()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [FILE, f"{FILE}.1", f"{FILE}.2"]
    assert all((tmp_path / name).stat().st_size <= 4096 for name in names)
    kept = [entry["resource"] for name in reversed(names) for entry in lines(tmp_path / name)]
    assert kept == [f"topic-{number}" for number in range(200 - len(kept), 200)], "the latest, in order"


def test_repeated_refusal_is_written_once_with_its_number(tmp_path: Path) -> None:
    """A client that fetches again and again pushes nothing out of the file."""
    log = AuditLog(tmp_path / FILE, 1 << 20, 3)
    for _ in range(1_000):
        refuse(log)
    for _ in range(2):
        log.record_login("mallory", "10.0.0.9", "PLAIN", False)
    log.close_log()
    found = [(entry["principal"], entry.get("count")) for entry in lines(tmp_path / FILE)]
    assert found == [("User:alice", None), ("mallory", None), ("User:alice", 999), ("mallory", 1)]


def test_repetitions_are_counted_in_time_though_the_clock_is_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "REPEAT_S", 0.2)
    monkeypatch.setattr(audit, "WAKE_S", 0.05)
    log = AuditLog(tmp_path / FILE, 1 << 20, 3)
    refuse(log, "t")
    until(lambda: (tmp_path / FILE).exists() and len(lines(tmp_path / FILE)) == 1, "the first is written")
    monkeypatch.setattr(time, "time", lambda: 1.0)
    refuse(log, "t")
    until(lambda: [entry.get("count") for entry in lines(tmp_path / FILE)] == [None, 1], "the second is counted", 20)
    log.close_log()


def test_invented_names_push_nothing_out_of_the_file(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / FILE, 1 << 20, 1)
    log.record_change(ALICE, AuditedChange("DELETE", "TOPIC", "t"))
    for number in range(4_000):
        refuse(log, f"{number:01000}")
        log.record_login(f"user-{number:0900}", "10.0.0.9", "PLAIN", False)
        if number % 100 == 0:
            until(lambda: not log._queue.qsize(), "the entries are written")
    log.close_log()
    found = lines(tmp_path / FILE)
    assert found[0]["event"] == "change"
    assert len(found) < 200
    counted = {entry["event"]: entry["count"] for entry in found if "count" in entry}
    assert counted == {"refusal": 4_000 - 51, "login": 4_000 - 51}
    assert log.lost_entries == 0


def test_refusals_leave_room_in_the_queue_for_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One request can name more refused topics than the queue has room for."""
    log = AuditLog(tmp_path / FILE, 1 << 20, 1)
    monkeypatch.setattr(log, "_thread", threading.Thread())
    for number in range(audit.QUEUE_MAX):
        refuse(log, str(number))
    assert log.lost_entries == audit.QUEUE_MAX // 2
    for _ in range(100):
        log.record_change(ALICE, AuditedChange("CREATE", "TOPIC", "t"))
    assert log.lost_entries == audit.QUEUE_MAX // 2


def test_changes_are_all_written(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / FILE, 1 << 20, 3)
    for _ in range(5):
        log.record_change(ALICE, AuditedChange("CREATE", "TOPIC", "t"))
    log.close_log()
    assert len(lines(tmp_path / FILE)) == 5


def test_recording_never_waits_and_lost_entries_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the disk hangs, entries beyond the queue are lost."""
    monkeypatch.setattr(audit, "QUEUE_MAX", 10)
    pipe = tmp_path / FILE
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    log = AuditLog(pipe, 1 << 40, 3)
    try:
        for number in range(5_000):
            log.record_change(ALICE, AuditedChange("CREATE", "TOPIC", f"{number:0900}"))
        assert log.lost_entries > 3_000
        said = b""

        def counted() -> bool:
            nonlocal said
            said += os.read(reader, 1 << 20)
            if said.count(b"\n") > 5:
                log.record_change(ALICE, AuditedChange("CREATE", "TOPIC", "late"))
            return b'"event":"lost"' in said

        until(counted, "the number of lost entries")
    finally:
        os.close(reader)
        log.close_log()


def test_disk_that_can_not_be_written_loses_entries_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FILE).mkdir()
    log = AuditLog(tmp_path / FILE, 1 << 20, 3)
    for number in range(3):
        log.record_change(ALICE, AuditedChange("CREATE", "TOPIC", str(number)))
    until(lambda: log.lost_entries == 3, "all are lost")
    (tmp_path / FILE).rmdir()
    log.record_change(ALICE, AuditedChange("CREATE", "TOPIC", "t"))
    log.close_log()
    first, second = lines(tmp_path / FILE)
    assert (first["event"], first["count"]) == ("lost", 3)
    assert second["resource"] == "t"
    assert [record.levelname for record in caplog.records if "audit log" in record.getMessage()] == ["ERROR", "WARNING"]


def test_entry_that_can_not_be_written_ends_no_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = AuditLog(tmp_path / FILE, 1 << 20, 3)

    def fail(entry: object) -> bytes:
        raise RuntimeError("a bug")

    with monkeypatch.context() as broken:
        broken.setattr(audit, "_line", fail)
        log.record_change(ALICE, AuditedChange("CREATE", "TOPIC", "lost"))
        until(lambda: log.lost_entries == 1, "it is lost")
    log.record_change(ALICE, AuditedChange("CREATE", "TOPIC", "t"))
    log.close_log()
    first, second = lines(tmp_path / FILE)
    assert (first["event"], first["count"], second["resource"]) == ("lost", 1, "t")


def test_link_in_the_place_of_the_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("kept")
    (tmp_path / FILE).symlink_to(tmp_path / "other")
    log = AuditLog(tmp_path / FILE, 1 << 20, 3)
    log.record_change(ALICE, AuditedChange("CREATE", "TOPIC", "t"))
    until(lambda: log.lost_entries == 1, "it is lost")
    log.close_log()
    assert (tmp_path / "other").read_text() == "kept"


def test_broken_line_of_a_crash_does_not_break_the_next(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('{"event": "chan')
    log = AuditLog(tmp_path / FILE, 1 << 20, 3)
    log.record_change(ALICE, AuditedChange("CREATE", "TOPIC", "t"))
    log.close_log()
    assert json.loads((tmp_path / FILE).read_text().splitlines()[1])["resource"] == "t"


def test_hostile_names_stay_one_short_line(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / FILE, 1 << 20, 3)
    name = '\n{"event": "login"}\r\u2028\x00\x9b\u202e\N{GRINNING FACE}é'
    refuse(log, name + "x" * 30_000)
    refuse(log, "\udcff")  # bytes of a host or a file that are no UTF-8
    log.close_log()
    data = (tmp_path / FILE).read_bytes()
    assert data.count(b"\n") == 2
    assert len(data) < 3_500
    assert data.isascii()
    hostile, surrogate = (entry["resource"] for entry in lines(tmp_path / FILE))
    assert hostile.startswith(name + "xxx")
    assert surrogate == "?"


# -- a broker


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with Broker(tmp_path / "data", {**SETTINGS}) as broker:
        with RawClient(broker.bootstrap_servers, "reader") as client, Admin(broker.bootstrap_servers) as admin:
            run(client, admin)
    return tmp_path / "data"


PASSWORD, VALUE = "correct-horse", "86400123"


def run(client: RawClient, admin: Admin) -> None:
    """AuditedChange one thing of each kind, and be refused once."""
    admin.create_topics([NewTopic("t", 1, configs={"retention.ms": VALUE})]).all()
    admin.create_partitions({"t": 2}).all()
    admin.incremental_alter_configs({ConfigResource(ResourceType.TOPIC, "t"): {"retention.ms": VALUE}}).all()
    admin.alter_user_scram_credentials([ScramCredential("dave", PASSWORD)]).all()
    admin.alter_client_quotas({(("user", "dave"),): {"producer_byte_rate": 1e6}}).all()
    admin.create_topics([NewTopic("t", 1)])  # it exists: no change
    rule = Acl("User:ANONYMOUS", READ, AclResource.TOPIC, "t", permission=AclPermission.DENY)
    admin.create_acls([rule]).all()
    for _ in range(3):
        fetch(client, "t", 0, 0)
    admin.delete_acls([AclFilter(principal="User:ANONYMOUS")]).all()
    admin.delete_topics(["t"]).all()


def test_broker_records_changes_and_refusals_without_secrets(folder: Path) -> None:
    entries = lines(folder / FILE)
    reported = [
        (entry["api"], entry["operation"], entry["resource_type"], entry["resource"], entry.get("details"))
        for entry in entries
        if entry["event"] == "change"
    ]
    assert reported == [
        ("CreateTopics", "CREATE", "TOPIC", "t", "retention.ms"),
        ("CreatePartitions", "ALTER", "TOPIC", "t", "2 partitions"),
        ("IncrementalAlterConfigs", "ALTER_CONFIGS", "TOPIC", "t", "retention.ms"),
        ("AlterUserScramCredentials", "ALTER", "USER", "dave", "credential 2 set, 8192 iterations"),
        ("AlterClientQuotas", "ALTER_CONFIGS", "QUOTA", "user=dave", "producer_byte_rate"),
        ("CreateAcls", "ALTER", "CLUSTER", "kafka-cluster", "added: DENY User:ANONYMOUS from * READ TOPIC LITERAL t"),
        ("DeleteAcls", "ALTER", "CLUSTER", "kafka-cluster", "deleted: DENY User:ANONYMOUS from * READ TOPIC LITERAL t"),
        ("DeleteTopics", "DELETE", "TOPIC", "t", None),
    ]
    refused = [entry for entry in entries if entry["event"] == "refusal"]
    assert {entry["client_id"] for entry in refused} == {"reader"}
    assert [(entry["api"], entry["resource"], entry.get("count")) for entry in refused] == [
        ("Fetch", "t", None),
        ("Fetch", "t", 2),
    ]
    users = json.loads((folder / "users.json").read_text())["dave"]["SCRAM-SHA-512"]
    text = (folder / FILE).read_text()
    for secret in (PASSWORD, VALUE, *(str(value) for name, value in users.items() if name != "iterations")):
        assert secret not in text


def test_broker_without_an_authorizer_writes_none_unless_it_is_asked(tmp_path: Path) -> None:
    assert not broker_configs({})[0].is_audited
    assert broker_configs({"audit.log": "on"})[0].is_audited
    assert broker_configs(SETTINGS)[0].is_audited
    assert not broker_configs({**SETTINGS, "audit.log": "off"})[0].is_audited
    for choice in ("off", "on"):
        with Broker(tmp_path / choice, {"audit.log": choice}) as broker, Admin(broker.bootstrap_servers) as admin:
            admin.create_topics([NewTopic("t", 1)]).all()
        assert (tmp_path / choice / FILE).exists() is (choice == "on")


def test_every_api_that_changes_something_an_operator_asks_about_is_recorded() -> None:
    changing = ("Alter", "Create", "Delete", "Incremental", "OffsetDelete")
    from kohort.broker.routes import ROUTES

    found = {route.name for route in ROUTES.values() if route.name.startswith(changing)}
    nothing = {"AlterPartitionReassignments", "AlterReplicaLogDirs", "CreateDelegationToken"}
    assert found - nothing == CHANGES.keys(), "the others change nothing on a single broker"


def test_error_of_kafka_is_no_change(tmp_path: Path) -> None:
    with Broker(tmp_path / "data", {"audit.log": "on"}) as broker, Admin(broker.bootstrap_servers) as admin:
        with pytest.raises(KafkaError):
            admin.delete_topics(["none"]).all()
        admin.create_topics([NewTopic("t", 1)], validate_only=True).all()
    assert not (tmp_path / "data" / FILE).exists()


def test_each_refusal_of_a_repeated_commit_counts_once(tmp_path: Path) -> None:
    names, topic = Names.of("r"), OffsetCommitRequest.OffsetCommitRequestTopic
    part = OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0, committed_offset=3)
    commit = OffsetCommitRequest(group_id=names.new, topics=[topic(name=names.t, partitions=[part])])
    with Broker(tmp_path / "data", {**SETTINGS, "audit.log": "on"}) as broker:
        address = broker.bootstrap_servers
        with RawClient(address) as admin, RawClient(address, host=CLIENT_HOST) as client:
            take_over(admin)
            prepare(admin, names)
            for rights, refused in ((("READ GROUP new", "READ TOPIC t"), False), (("READ GROUP new",), True)):
                grant(admin, names, rights)
                answers = [client.ask(commit, 8) for _ in range(5)]
                codes = [answer.topics[0].partitions[0].error_code for answer in answers]
                assert codes == [ErrorCode.TOPIC_AUTHORIZATION_FAILED if refused else 0] * 5
    refusals = [entry for entry in lines(tmp_path / "data" / FILE) if entry["event"] == "refusal"]
    of_commits = [entry for entry in refusals if entry["api"] == "OffsetCommit" and entry["resource"] == names.t]
    assert sum(entry.get("count", 1) for entry in of_commits) == 5
