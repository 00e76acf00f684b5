"""Without a right that a region needs, nothing begins, and the error says which."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kohort.errors import NotAuthorizedError
from kohort.region.region import Region
from kohort.region.region_log import RegionLogView
from kohort.region.region_topic import TOPIC
from tests.region.conftest import make_topic
from tests.support.apache_kafka import ApacheKafka
from tests.support.maven import MavenUnavailable

AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
ACLS = "org.apache.kafka.tools.AclCommand"


@pytest.fixture(scope="module")
def guarded() -> Iterator[ApacheKafka]:
    try:
        kafka = ApacheKafka(AUTHORIZER)
    except MavenUnavailable as error:
        pytest.skip(f"Apache Kafka can't run here: {error}")
    with kafka:
        make_topic(kafka.bootstrap_servers, "t")
        home = RegionLogView("any", kafka.bootstrap_servers, {})
        home.partition_count()
        home.close()
        yield kafka


def deny(kafka: ApacheKafka, *what: str) -> None:
    """Writing; what else there is to do stays allowed."""
    for words in (("--deny-principal", "Write"), ("--allow-principal", "All")):
        who, operation = words
        given = (
            "--bootstrap-server",
            kafka.bootstrap_servers,
            "--add",
            who,
            "User:ANONYMOUS",
            "--operation",
            operation,
        )
        done = kafka.tools.run(ACLS, *given, *what)
        assert done.returncode == 0, done.stderr


@pytest.mark.kafka
def test_a_right_that_is_missing_is_reported(guarded: ApacheKafka) -> None:
    for denied in (("--transactional-id", "kohort-region-r"), ("--topic", TOPIC)):
        deny(guarded, *denied)
        with Region("r", guarded.bootstrap_servers) as region, pytest.raises(NotAuthorizedError) as caught:
            region.consumer("m1", group_id="g", topics=["t"])
        assert f"topic {TOPIC}" in str(caught.value) and "transactional id kohort-region-r" in str(caught.value)
