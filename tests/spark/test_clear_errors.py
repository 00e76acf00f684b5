"""Errors of impossible reads: early, with cause and remedy, before the query claims anything."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType
from tests.spark.queries import Place, Run, batch_reader, declared, own_signals, place, values_of
from tests.support.waiting import LAST_RESORT

from kohort import Broker
from kohort.errors import InvalidInputError, KafkaError, NotAuthorizedError, NotFoundError, TimedOutError
from kohort.spark.data_source import KohortDataSource

__all__ = ["own_signals", "place"]
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.usefixtures("own_signals"), LAST_RESORT]

NOBODY = "127.0.0.1:1"
REFUSED = "gave up after 400 ms: no broker can be reached .127.0.0.1:1: connection refused"
LOGIN = {
    "kafka.security.protocol": "SASL_PLAINTEXT",
    "kafka.sasl.mechanism": "PLAIN",
    "kafka.sasl.username": "alice",
    "kafka.sasl.password": "wrong",
}


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less patience than users get."""
    monkeypatch.setattr("kohort.spark.source.catalog.REACH_MS", 400)


def options(servers: str, **more: Any) -> dict[str, str]:
    given = {"kafka.bootstrap.servers": servers, "subscribe": "flights"}
    return {key: str(value) for key, value in (given | more).items() if value is not None}


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("group", ["etl", None])
def test_a_stream_whose_brokers_can_not_be_reached_fails_soon_with_address_and_cause(group: str | None) -> None:
    given = options(NOBODY, **{"group.id": group})
    with Run(given) as run, pytest.raises(TimedOutError, match=REFUSED):
        run.plan()
    with pytest.raises(TimedOutError, match=REFUSED):
        Run(given, now=True)


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("table", [None, "groups", "topics", "commits"])
def test_a_batch_read_whose_brokers_can_not_be_reached_fails_soon(table: str | None) -> None:
    given = options(NOBODY) if table is None else {"kafka.bootstrap.servers": NOBODY, "table": table}
    with pytest.raises(TimedOutError, match=REFUSED):
        batch_reader(given).partitions()


@pytest.mark.usefixtures("soon")
def test_tls_to_a_listener_without_it_says_what_may_be_wrong(servers: str) -> None:
    given = options(servers, **{"group.id": "etl", "kafka.security.protocol": "SSL"})
    with Run(given) as run, pytest.raises(KafkaError, match=f"{servers}: the broker speaks Kafka without TLS there"):
        run.plan()


def test_a_login_where_there_is_none_is_reported_at_once(our_broker: Broker) -> None:
    with (
        Run(options(our_broker.bootstrap_servers, **{"group.id": "etl"}, **LOGIN)) as run,
        pytest.raises(KafkaError, match="PLAIN"),
    ):
        run.plan()


@pytest.mark.kafka
@pytest.mark.parametrize("group", ["etl", None])
def test_a_wrong_password_is_reported_at_once(secured: Any, group: str | None) -> None:
    """No patience is needed: nothing is tried again."""
    servers, _ = secured.client("SASL")
    with Run(options(servers, **LOGIN, **{"group.id": group})) as run:
        with pytest.raises(NotAuthorizedError, match="user 'alice'"):
            run.plan()


def refused(given: dict[str, str], schema: StructType | None = None) -> KafkaError:
    """Return the error that Spark gets from a query's first method: Spark swallows the constructor's text."""
    source = KohortDataSource(given)
    reader: Any = source.streamReader(declared(source) if schema is None else schema)
    found = set()
    for name, arguments in (
        ("getDefaultReadLimit", ()),
        ("prepareForTriggerAvailableNow", ()),
        ("initialOffset", ()),
        ("latestOffset", ({}, None)),
        ("partitions", ({}, {})),
        ("read", (None,)),
    ):
        with pytest.raises(KafkaError) as caught:
            getattr(reader, name)(*arguments)
        found.add(caught.value)
    (error,) = found
    return error


def test_an_error_names_an_option_of_a_batch_read_in_a_stream() -> None:
    error = refused(options(NOBODY, endingOffsets="latest"))
    assert isinstance(error, InvalidInputError) and "endingOffsets belongs to a batch read" in str(error)


BY_HAND = StructType([StructField("value", BinaryType(), False)])


@pytest.mark.parametrize(
    "schema",
    [
        StructType(),
        BY_HAND,
        StructType([StructField("value", IntegerType())]),
        StructType([StructField("key", BinaryType())]),
        StructType([StructField("value", BinaryType()), StructField("key", BinaryType())]),
    ],
    ids=["empty", "not null", "another type", "another name", "one more"],
)
def test_a_schema_by_hand_is_refused_unless_it_is_the_declared_one(schema: StructType) -> None:
    given = options(NOBODY, columns="value")
    for error in (refused(given, schema), refused({"kafka.bootstrap.servers": NOBODY, "table": "lag"}, schema)):
        assert isinstance(error, InvalidInputError)
    assert "leave schema(...) out, choose columns by the option columns" in str(refused(given, schema))
    for more in (given, {"kafka.bootstrap.servers": NOBODY, "table": "lag"}):
        with pytest.raises(InvalidInputError, match=r"leave schema\(\.\.\.\) out"):
            KohortDataSource(more).reader(schema)
    same = StructType([StructField("value", BinaryType())])
    assert KohortDataSource(given).reader(same) and KohortDataSource(given).streamReader(same).stop() is None


def test_a_pattern_that_matches_nothing_is_an_error_in_a_batch_read_and_a_warning_in_a_stream(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    given = place.options(subscribe=None, subscribePattern=f"t-{place.name}-.")
    with pytest.raises(NotFoundError, match=rf"matches subscribePattern=t-{place.name}-\.: .* anywhere in a name"):
        batch_reader(given).partitions()
    globbed = given | {"subscribePattern": f"X{place.name}_*"}
    with pytest.raises(
        NotFoundError, match=rf"for topics whose names begin with X{place.name}_ write \^X{place.name}_"
    ):
        batch_reader(globbed).partitions()
    for group in (place.group, None):
        caplog.clear()
        with Run({key: value for key, value in given.items() if group or key != "group.id"}) as run:
            for _ in range(3):
                run.plan()
        warned = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert [text for text in warned if "the query waits for topics" in text] == warned[:1]
    place.make()
    place.produce(range(4))
    assert sorted(values_of(*both(batch_reader(given)))) == [0, 1, 2, 3]


def both(reader: Any) -> tuple[Any, Any]:
    return reader, reader.partitions()
