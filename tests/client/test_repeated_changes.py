"""Changes that are sent again because their answer was lost: a refusal then says what is not known."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest

from kohort import (
    Admin,
    Broker,
    CommitFailedError,
    Consumer,
    Fault,
    KafkaError,
    NewTopic,
    ScramCredential,
    TopicPartition,
)
from kohort.client.offsets import AFTER_LOST_ANSWER
from kohort.errors import ErrorCode
from tests.support.waiting import until


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def admin(broker: Broker) -> Iterator[Admin]:
    with Admin(broker.bootstrap_servers) as admin:
        yield admin
    broker.faults.clear()


def create(admin: Admin, name: str) -> None:
    admin.create_topics([NewTopic(name, 1, 1)]).all()


def delete(admin: Admin, name: str) -> None:
    admin.delete_topics([name]).all()


def grow(admin: Admin, name: str) -> None:
    admin.create_partitions({name: 3}).all()


@pytest.mark.parametrize(
    ("change", "api", "error"),
    [
        (create, "CreateTopics", ErrorCode.TOPIC_ALREADY_EXISTS),
        (delete, "DeleteTopics", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (grow, "CreatePartitions", ErrorCode.INVALID_PARTITIONS),
    ],
    ids=["create", "delete", "grow"],
)
def test_a_topics_change_that_its_own_first_try_made(
    broker: Broker, admin: Admin, change: Callable[[Admin, str], None], api: str, error: ErrorCode
) -> None:
    name = f"t-{uuid.uuid4().hex[:8]}"
    if change is not create:
        create(admin, name)
    broker.faults.add(Fault(api, "close_after"))
    with pytest.raises(KafkaError) as caught:
        change(admin, name)
    assert (caught.value.code, caught.value.after_lost_answer) == (error, True)
    assert AFTER_LOST_ANSWER in str(caught.value)
    with pytest.raises(KafkaError) as caught:
        change(admin, name)
    assert (caught.value.code, caught.value.after_lost_answer) == (error, False)
    assert AFTER_LOST_ANSWER not in str(caught.value)


def test_removal_of_members_that_its_own_first_try_made(broker: Broker, admin: Admin) -> None:
    name = f"t-{uuid.uuid4().hex[:8]}"
    create(admin, name)
    with Consumer(broker.bootstrap_servers, group_id=name, group_instance_id="one") as consumer:
        consumer.subscribe([name])
        until(lambda: bool(consumer.poll(50) or consumer.assignment()), "the consumer has its partition")
        broker.faults.add(Fault("LeaveGroup", "close_after"))
        for lost in (True, False):
            found = admin.remove_members_from_consumer_group(name, ["one"]).errors["one"]
            assert (found.code, found.after_lost_answer) == (ErrorCode.UNKNOWN_MEMBER_ID, lost)
            assert "member 'one': " in found.message
            assert (AFTER_LOST_ANSWER in found.message) == lost


def test_deletion_of_a_password_that_its_own_first_try_made(broker: Broker, admin: Admin) -> None:
    name = f"u-{uuid.uuid4().hex[:8]}"
    admin.alter_user_scram_credentials([ScramCredential(name, "secret")]).all()
    broker.faults.add(Fault("AlterUserScramCredentials", "close_after"))
    for lost in (True, False):
        found = admin.alter_user_scram_credentials(deletions=[(name, "SCRAM-SHA-512")]).errors[name]
        assert (found.code, found.after_lost_answer) == (ErrorCode.RESOURCE_NOT_FOUND, lost)


def test_a_request_that_was_not_sent_or_certainly_not_taken_is_no_earlier_try(broker: Broker, admin: Admin) -> None:
    name = f"t-{uuid.uuid4().hex[:8]}"
    create(admin, name)
    part = TopicPartition(name, 0)
    broker.faults.add(Fault("OffsetCommit", "fail", error=ErrorCode.NOT_COORDINATOR, times=2))
    broker.faults.add(Fault("OffsetCommit", "fail", error=ErrorCode.UNKNOWN_MEMBER_ID))
    found = admin.alter_consumer_group_offsets(name, {part: 0}).errors[part]
    assert (found.code, found.after_lost_answer) == (ErrorCode.UNKNOWN_MEMBER_ID, False)


@pytest.mark.parametrize("lost", [True, False], ids=["sent before", "never sent before"])
def test_a_commit_that_is_refused_after_its_first_answer_was_lost(broker: Broker, admin: Admin, lost: bool) -> None:
    name = f"t-{uuid.uuid4().hex[:8]}"
    create(admin, name)
    part = TopicPartition(name, 0)
    with Consumer(broker.bootstrap_servers, group_id=name, enable_auto_commit=False) as consumer:
        consumer.assign([part])
        if lost:
            broker.faults.add(Fault("OffsetCommit", "close_after"))
        broker.faults.add(Fault("OffsetCommit", "fail", error=ErrorCode.ILLEGAL_GENERATION))
        with pytest.raises(CommitFailedError) as caught:
            consumer.commit({part: 0})
    assert caught.value.after_lost_answer == lost
    assert (AFTER_LOST_ANSWER in str(caught.value)) == lost
    assert (part in admin.list_consumer_group_offsets(name).values) == lost


@pytest.mark.parametrize(
    "code", [ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR], ids=["may be written", "not written"]
)
@pytest.mark.parametrize("as_member", [True, False], ids=["consumer", "admin"])
def test_a_try_that_may_have_been_written_counts_as_one_without_an_answer(
    broker: Broker, admin: Admin, code: ErrorCode, as_member: bool
) -> None:
    """A coordinator that could not wait for its record to be written answers COORDINATOR_NOT_AVAILABLE."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    create(admin, name)
    part = TopicPartition(name, 0)
    broker.faults.add(Fault("OffsetCommit", "fail", error=code))
    broker.faults.add(Fault("OffsetCommit", "fail", error=ErrorCode.ILLEGAL_GENERATION))
    if as_member:
        with Consumer(broker.bootstrap_servers, group_id=name, enable_auto_commit=False) as consumer:
            consumer.assign([part])
            with pytest.raises(CommitFailedError) as caught:
                consumer.commit({part: 0})
        found: KafkaError = caught.value
    else:
        found = admin.alter_consumer_group_offsets(name, {part: 0}).errors[part]
    assert found.after_lost_answer == (code is ErrorCode.COORDINATOR_NOT_AVAILABLE)


def test_a_coordinator_that_is_refused_after_a_lost_answer_says_nothing_of_the_first_try(
    broker: Broker, admin: Admin
) -> None:
    name = f"t-{uuid.uuid4().hex[:8]}"
    create(admin, name)
    part = TopicPartition(name, 0)
    admin.alter_consumer_group_offsets(name, {part: 0}).all()
    broker.faults.add(Fault("OffsetCommit", "close_after"))
    broker.faults.add(Fault("FindCoordinator", "fail", error=ErrorCode.GROUP_AUTHORIZATION_FAILED))
    with pytest.raises(KafkaError) as caught:
        admin.alter_consumer_group_offsets(name, {part: 1}).all()
    assert caught.value.code is ErrorCode.GROUP_AUTHORIZATION_FAILED
    assert caught.value.after_lost_answer
