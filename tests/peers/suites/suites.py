"""The suites: where each comes from, the broker it needs, and what in it can't pass here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

_NO_AUTHORIZER = "needs an authorizer, which the broker has not; Apache Kafka without one fails it too"
_WITHOUT_CONNECTION = "its own helper has no way to connect and panics, whatever the broker"
_READ_TWICE = "passes only if records are read twice in a rebalance; fails on Apache Kafka 4.3.1 as well"
_NO_SASL = "wants a second listener, with SASL, on port 9093"


@dataclass(frozen=True, slots=True)
class Suite:
    """A Go package with its tests.

    Attributes:
        module: as the Go module proxy knows it.
        version: of the module.
        package: the folder of the tests, in the module.
        port: where its tests expect the broker; 0: where `servers_variable` says.
        servers_variable: the environment variable that names the broker, if there is one.
        environment: what else it is told.
        settings: of the broker.
        short: tests that `make test` runs, as a regular expression of Go's.
        short_environment: what else it is told then.
        left_out: tests that can't run at all, and why: they would end the suite.
        expected: tests that fail, and why.
    """

    name: str
    module: str
    version: str
    package: str
    port: int = 0
    servers_variable: str = ""
    environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    settings: Mapping[str, str | int] = field(default_factory=lambda: MappingProxyType({}))
    short: str = ""
    short_environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    left_out: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    expected: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


SUITES = {
    suite.name: suite
    for suite in (
        Suite(
            name="franz-go",
            module="github.com/twmb/franz-go",
            version="v1.22.2",
            package="pkg/kgo",
            servers_variable="KGO_SEEDS",
            environment={"KGO_TEST_RF": "1", "KGO_TEST_RECORDS": "50000"},
            settings={"num.partitions": 4},
            short="^(TestGroupETL|TestTxnEtl|TestIssue[1-46-9][0-9]*)$",
            short_environment={"KGO_TEST_RECORDS": "5000"},
        ),
        Suite(
            name="kafka-go",
            module="github.com/segmentio/kafka-go",
            version="v0.4.51",
            package=".",
            port=9092,
            environment={"KAFKA_VERSION": "4.0.0", "KAFKA_SKIP_NETTEST": "1"},
            settings={
                "advertised.host.name": "localhost",
                "group.initial.rebalance.delay.ms": 0,
            },
            left_out={
                f"TestReaderConsumerGroup/{name}": _WITHOUT_CONNECTION
                for name in (
                    "verify_offset_committed",
                    "verify_offset_committed_when_using_interval_committer",
                    "consumer_group_commits_on_close",
                )
            },
            expected={
                "TestClientCreateACLs": _NO_AUTHORIZER,
                "TestClientDeleteACLs": _NO_AUTHORIZER,
                "TestClientDescribeACLs": _NO_AUTHORIZER,
                "TestReaderConsumerGroup/consumer_group_rebalance": _READ_TWICE,
                "TestUnsupportedSASLMechanism": _NO_SASL,
                "TestWriter/writing_a_message_with_SASL_Plain_authentication": _NO_SASL,
            },
        ),
    )
}
