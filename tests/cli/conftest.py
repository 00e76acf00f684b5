"""A command line for tests of commands, against our broker and Apache Kafka."""

from __future__ import annotations

import uuid

import pytest
from tests.cli.running import Kohort, Said
from tests.support.waiting import until

from kohort import Admin, TopicPartition
from kohort.cli.app import run
from kohort.client.offsets import OffsetAndMetadata


@pytest.fixture
def kohort(servers: str, capsys: pytest.CaptureFixture[str]) -> Kohort:
    def command(*args: str) -> Said:
        capsys.readouterr()
        code = run([*args, "--bootstrap-server", servers])
        captured = capsys.readouterr()
        return Said(code, captured.out, captured.err)

    return command


@pytest.fixture
def topic(kohort: Kohort) -> str:
    name = f"cli-{uuid.uuid4().hex[:8]}"
    assert kohort("topics", "create", name, "--partitions", "3").code == 0
    return name


@pytest.fixture
def group(servers: str, topic: str) -> str:
    """A group without members that has committed offset 0 in every partition."""
    name = f"{topic}-group"
    offsets = {TopicPartition(topic, number): OffsetAndMetadata(0) for number in range(3)}
    with Admin(servers) as admin:

        def is_committed() -> bool:
            """Apache Kafka's coordinator may learn of a new topic after its creation was answered."""
            return not admin.alter_consumer_group_offsets(name, offsets).errors

        until(is_committed, "offsets are committed")
    return name
