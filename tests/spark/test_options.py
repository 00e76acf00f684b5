"""Options: what is refused, and with which words."""

from __future__ import annotations

import re
import subprocess
from typing import Any

import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from tests.support import maven

from kohort.client.producer.settings import ProducerConfig
from kohort.client.settings import ConsumerConfig
from kohort.errors import InvalidInputError
from kohort.ids import TopicPartition
from kohort.settings.config import settings
from kohort.spark.data_source import KohortDataSource
from kohort.spark.java_settings import REFUSED, REFUSED_OF_SINK, REFUSED_OF_SOURCE, WITHOUT_EFFECT
from kohort.spark.option_names import edit_distance
from kohort.spark.options import client_settings, parse_options, parse_partition_lists, parse_partition_offsets
from kohort.spark.schema import arrow_schema, column_names_of, spark_schema
from kohort.spark.sink_options import parse_sink_options
from kohort.spark.source.bounds import ending_bound, starting_bound
from kohort.spark.source.readers import TaskReader
from kohort.spark.tables import parse_table_options
from kohort.spark.tasks.write import TaskWriter

LEAST = {"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribe": "flights"}


def test_words_are_taken_in_the_case_that_spark_and_javas_client_take_them_in() -> None:
    """Spark writes its strategy in capitals itself; Java's client compares protocols without case."""
    given = {"startingOffsetsByTimestampStrategy": "LATEST", "kafka.group.protocol": "CONSUMER"}
    options = parse_options(LEAST | given | {"kafka.security.protocol": "ssl"}, streaming=True)
    assert (options.starting_strategy, options.group_protocol) == ("latest", "consumer")
    assert options.kafka["security.protocol"] == "SSL"
    stores = {"kafka.ssl.truststore.type": "jks", "kafka.ssl.keystore.type": "Pkcs12"}
    found = parse_options(LEAST | stores | {"kafka.ssl.endpoint.identification.algorithm": "HTTPS"}).kafka
    assert (found["ssl.truststore.type"], found["ssl.keystore.type"]) == ("JKS", "PKCS12")
    assert found["ssl.endpoint.identification.algorithm"] == "https"
    assert (
        parse_options(LEAST | {"kafka.ssl.endpoint.identification.algorithm": " "}).kafka[
            "ssl.endpoint.identification.algorithm"
        ]
        == ""
    )


@pytest.mark.parametrize(
    ("given", "size"),
    [("65536", 65536), ("65536b", 65536), ("10m", 10 << 20), ("2 ", 2), ("1GB", 1 << 30), ("3k", 3072)],
)
def test_byte_limit_has_the_units_of_sparks_own_sources(given: str, size: int) -> None:
    assert parse_options(LEAST | {"maxBytesPerTrigger": given}).max_bytes_per_trigger == size


def test_refused_read_without_any_option_names_the_tables() -> None:
    """Spark gives a source none of the options of a table in its catalog."""
    with pytest.raises(InvalidInputError, match="missing.*no option of a CREATE TABLE: use CREATE TEMPORARY VIEW"):
        parse_options({})


@pytest.mark.parametrize("parse", [parse_options, parse_table_options], ids=["source", "table"])
def test_options_of_a_table_in_sparks_catalog_are_said_to_have_no_effect(parse: Any) -> None:
    """Spark passes these when such a table is created, and asks for its columns alone."""
    least = dict(LEAST) if parse is parse_options else {"kafka.bootstrap.servers": "127.0.0.1:9092", "table": "topics"}
    doubled = {f"option.{name}": value for name, value in least.items()}
    options = parse(least | doubled | {"provider": "kohort", "owner": "me", "location": "/w/t"})
    (note,) = options.ignored
    assert note.startswith("the options of CREATE TABLE (Spark hands over none of them when the table is read")
    assert parse(least).ignored == []


@pytest.mark.parametrize("given", ["10 m", "m", "1.5m", "10x", "-1m", "0m"])
def test_byte_limit_of_another_form_is_refused(given: str) -> None:
    with pytest.raises(InvalidInputError, match="maxBytesPerTrigger must be"):
        parse_options(LEAST | {"maxBytesPerTrigger": given})


def test_passwords_are_in_no_printout_of_a_read_or_a_write() -> None:
    """SPARK-27748, ABRiS #212: options are printed where an error is reported with its variables."""
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    given = LEAST | {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.jaas.config": f"{module} required username='a' password='secret';",
        "kafka.ssl.truststore.password": "secret",
        "schemaRegistryUrl": "http://me:secret@127.0.0.1:8081",
        "valueFormat": "avro",
    }
    options = parse_options(given)
    reading = TaskReader.from_settings(options.bootstrap_servers, client_settings(options), ("value",), True)
    sink = parse_sink_options(given | {"topic": "flights"})
    writing = TaskWriter(
        sink.bootstrap_servers, tuple(sink.producer_settings().items()), "flights", frozenset(["value"])
    )
    printed = [repr(found) for found in (options, reading, sink, writing)]
    assert [text for text in printed if "secret" in text] == []
    assert all("flights" in text or "value" in text for text in printed)


def test_names_are_matched_without_case_and_kafka_settings_are_kept() -> None:
    options = parse_options(
        {
            **LEAST,
            "MAXOFFSETSPERTRIGGER": "10",
            "kafka.Group.Id": "g",
            "kafka.fetch.max.bytes": "1000",
        },
        streaming=True,
    )
    assert (options.subscribe, options.max_offsets_per_trigger, options.group_id) == (
        ("flights",),
        10,
        "g",
    )
    assert options.kafka == {"bootstrap.servers": "127.0.0.1:9092", "fetch.max.bytes": "1000"}


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"maxOffsetPerTrigger": "1"}, "did you mean maxOffsetsPerTrigger"),
        (
            {"kafka.bootstrap.servers": "", "bootstrap.servers": "x"},
            "kafka.bootstrap.servers is missing.*did you mean it",
        ),
        ({"kafka.bootstrap.servers": " "}, "kafka.bootstrap.servers is missing"),
        ({"subscribe": ""}, "none is given"),
        ({"subscribe": " , "}, "subscribe names nothing to read: ' , '"),
        ({"subscribe": "", "assign": "{}"}, "assign names nothing to read"),
        ({"assign": '{"a":[0]}'}, "subscribe and assign are given"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger must be at least 1 offsets"),
        ({"plannedRanges": "some"}, "plannedRanges must be one of owned, all, none"),
        ({"endingOffsets": "latest"}, "endingOffsets belongs to a batch read"),
        (
            {"region": "flights"},
            "the option region can't be set for a source: queries of a region are started by SparkRegion",
        ),
        ({"regionSeat": "5e"}, "a source in a region is a member of a group: name it by group.id"),
        (
            {"regionSeat": "5e", "group.id": "g", "plannedRanges": "all"},
            "plannedRanges has no place in a region: a reg",
        ),
        ({"regionSeat": "5e", "group.id": "g", "onRevocationTimeout": "fail"}, "onRevocationTimeout has no place in a"),
        (
            {"regionSeat": "5e", "group.id": "g", "subscribe": "", "assign": '{"a":[0]}'},
            "assign has no place in a region: .* subscribe instead",
        ),
        ({"minOffsetsPerTrigger": "11", "maxOffsetsPerTrigger": "10"}, "minOffsetsPerTrigger=11 is above .*=10"),
        ({"subscribe": "", "subscribePattern": "fl("}, "subscribePattern .fl... there is a . without its ."),
    ],
)
def test_what_can_not_be_is_refused_with_the_way_out(more: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        parse_options({**LEAST, **more}, streaming=True)


def test_limits_of_a_stream_in_a_batch_read_are_passed_over_as_spark_does_or_refused() -> None:
    (text,) = parse_options({**LEAST, "minOffsetsPerTrigger": "5"}, streaming=False).ignored
    assert text == "minOffsetsPerTrigger (a batch read of Spark's Kafka source ignores it too)"
    for name in ("maxBytesPerTrigger", "regionSeat"):
        with pytest.raises(InvalidInputError, match=f"{name} belongs to a streaming read"):
            parse_options({**LEAST, name: "5", "group.id": "g"}, streaming=False)


def test_end_by_a_time_is_passed_over_by_a_stream_as_spark_does() -> None:
    """Spark's own source refuses the other two ends in a stream, and a public job's stream with this one reads on."""
    (text,) = parse_options({**LEAST, "endingTimestamp": "5"}, streaming=True).ignored
    assert text == "endingTimestamp (a stream of Spark's Kafka source ignores it too)"
    assert parse_options({**LEAST, "endingTimestamp": "5"}, streaming=False).ignored == []
    with pytest.raises(InvalidInputError, match="endingOffsetsByTimestamp belongs to a batch read"):
        parse_options({**LEAST, "endingOffsetsByTimestamp": '{"flights":{"0":1}}'}, streaming=True)


@pytest.mark.parametrize(
    ("given", "kind"),
    [("maxOffsetsPerTrigger", "a batch read"), ("endingTimestamp", "a stream")],
    ids=["batch", "stream"],
)
def test_option_of_the_other_kind_of_read_is_in_a_warning(
    given: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The kind is known after `schema`, whose warning had nothing of it."""
    source = KohortDataSource({**LEAST, given: "5"})
    source.schema()
    assert caplog.messages == []
    reader = source.streamReader if kind == "a stream" else source.reader
    reader(from_arrow_schema(arrow_schema(column_names_of(parse_options(LEAST)))))
    (text,) = caplog.messages
    assert text.startswith(f"options that have no effect here: {given} ({kind} of Spark's Kafka source ignores it too)")


def test_in_a_region_limits_count_and_a_start_is_taken_without_effect() -> None:
    more = {"REGIONSEAT": "5e", "group.id": "g", "maxOffsetsPerTrigger": "10", "startingOffsets": "earliest"}
    options = parse_options({**LEAST, **more}, streaming=True)
    assert (options.region_session, options.max_offsets_per_trigger) == ("5e", 10)


def test_json_forms() -> None:
    assert parse_partition_lists("assign", '{"b":[1,0],"a":[2]}') == (
        TopicPartition("a", 2),
        TopicPartition("b", 0),
        TopicPartition("b", 1),
    )
    assert parse_partition_offsets("startingOffsets", '{"a":{"0":5,"1":-2}}') == {
        TopicPartition("a", 0): 5,
        TopicPartition("a", 1): -2,
    }
    assert parse_partition_offsets("startingOffsets", '{"a":{"0":5.0}}') == {TopicPartition("a", 0): 5}
    texts = ("", "[]", '{"a":5}', '{"a":{"x":1}}')
    numbers = ('{"a":{"0":5.5}}', '{"a":{"0":true}}', '{"a":{"0":null}}', '{"a":{"0":"5"}}')
    for bad in texts + numbers:
        with pytest.raises(InvalidInputError, match="startingOffsets must be JSON"):
            parse_partition_offsets("startingOffsets", bad)
    for bad in ('{"a":"01"}', '{"a":{"0":1}}', '{"a":[0.5]}', '{"a":[true]}', '{"a":0}', '{"a":["0"]}'):
        with pytest.raises(InvalidInputError, match="assign must be JSON"):
            parse_partition_lists("assign", bad)


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("minPartitions", ("", " 5", "5 ", "1_0", "5.0")),
        ("maxRecordsPerPartition", ("", "5 ")),
        ("maxOffsetsPerTrigger", ("", " 5")),
        ("minOffsetsPerTrigger", ("",)),
        ("startingTimestamp", ("", " ", "1_0")),
        ("endingTimestamp", ("",)),
        ("includeHeaders", ("", " true", "yes", "1")),
        ("failOnDataLoss", ("", "false ")),
        ("startingOffsets", ("", " ")),
        ("endingOffsetsByTimestamp", ("",)),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_value_that_sparks_source_refuses_by_its_spelling_is_refused(name: str, texts: tuple[str, ...]) -> None:
    for text in texts:
        with pytest.raises(InvalidInputError, match=f"^{name} (must be|is empty)"):
            parse_options(LEAST | {name: text})


def test_spelling_that_sparks_source_takes_is_taken() -> None:
    options = parse_options(LEAST | {"minPartitions": "+5", "startingTimestamp": " 7 ", "includeHeaders": "TRUE"})
    assert (options.min_partitions, options.starting_timestamp, options.include_headers) == (5, 7, True)


def test_refused_word_of_offsets_names_the_words_that_are_known() -> None:
    with pytest.raises(InvalidInputError, match="startingOffsets must be earliest, latest, committed, or JSON like"):
        starting_bound(parse_options(LEAST | {"startingOffsets": "begin"}), streaming=False)
    with pytest.raises(InvalidInputError, match="endingOffsets must be earliest, latest, committed, or JSON like"):
        ending_bound(parse_options(LEAST | {"endingOffsets": "end"}))


def test_columns_come_in_the_order_asked_for() -> None:
    assert column_names_of(parse_options(LEAST))[-1] == "timestampType"
    assert column_names_of(parse_options({**LEAST, "includeHeaders": "true"}))[-1] == "headers"
    names = column_names_of(parse_options({**LEAST, "columns": "VALUE, rangestart"}))
    assert names == ("value", "rangeStart")
    assert spark_schema(names) == "`value` binary, `rangeStart` bigint"
    assert arrow_schema(names).names == ["value", "rangeStart"]
    with pytest.raises(InvalidInputError, match="unknown column"):
        column_names_of(parse_options({**LEAST, "columns": "values"}))


def test_what_tunes_sparks_own_source_is_taken_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    tuned = {
        "kafkaConsumer.pollTimeoutMs": "512",
        "fetchoffset.numretries": "3",
        "fetchOffset.retryIntervalMs": "10",
        "groupIdPrefix": "spark",
        "kafka.max.poll.records": "20000",
        "kafka.receive.buffer.bytes": "1048576",
    }
    source = KohortDataSource({**LEAST, **tuned})
    source.schema()
    source.reader(from_arrow_schema(arrow_schema(column_names_of(parse_options({**LEAST, **tuned})))))
    (text,) = [record.getMessage() for record in caplog.records]
    assert "kafkaConsumer.pollTimeoutMs, fetchOffset.numRetries, fetchOffset.retryIntervalMs (they tune" in text
    assert "groupIdPrefix (a query is in the group" in text
    assert "kafka.max.poll.records (there are no polls" in text and "receive.buffer" not in text
    KohortDataSource(LEAST).schema()
    assert len(caplog.records) == 1


FOREIGN = {
    "truncate": "false",
    "INFERSCHEMA": "true",
    "mode": "PERMISSIVE",
    "key.serializer": "org.apache.kafka.common.serialization.StringSerializer",
    "spark.streaming.kafka.maxRatePerPartition": "100",
    "path": "/in",
    "bootstrap.servers": "127.0.0.1:9092",
}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        pytest.param(
            {"kafkaConsumer.pollTimeoutMs": "1"},
            "kafkaConsumer.pollTimeoutMs (it tunes Spark's Kafka source)",
            id="one",
        ),
        pytest.param(
            {"kafkaConsumer.pollTimeoutMs": "1", "fetchOffset.numRetries": "1"},
            "kafkaConsumer.pollTimeoutMs, fetchOffset.numRetries (they tune Spark's Kafka source)",
            id="two",
        ),
        pytest.param(
            {"groupIdPrefix": "p", "groupId": "g", "group_id": "h"},
            "groupIdPrefix, groupId, group_id (a query is in the group of group.id, or in none)",
            id="prefix",
        ),
        pytest.param({"kohortish": "1"}, "kohortish (Spark's Kafka source ignores it too)", id="unknown"),
    ],
)
def test_reason_of_an_ignored_option_is_its_own(given: dict[str, str], text: str) -> None:
    assert parse_options({**LEAST, **given}, streaming=True).ignored == [text]


def test_options_that_spark_passes_over_are_one_warning_that_lists_them_all(caplog: pytest.LogCaptureFixture) -> None:
    given = {**LEAST, **{name.lower(): value for name, value in FOREIGN.items()}}
    KohortDataSource(given).schema()
    KohortDataSource(given).schema()
    (text,) = [record.getMessage() for record in caplog.records]
    assert text.startswith(
        "options that have no effect here: truncate, inferSchema, mode, key.serializer, "
        "spark.streaming.kafka.maxrateperpartition, path, bootstrap.servers (Spark's Kafka source ignores these too)"
    )
    with pytest.raises(InvalidInputError, match=r"strictOptions=true, and options would have no effect: truncate, inf"):
        parse_options({**given, "strictoptions": "true"})


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("startingOffset", "startingOffsets"),
        ("startngOffset", "startingOffsets"),
        ("failOnDataLos", "failOnDataLoss"),
        ("includeHeader", "includeHeaders"),
        ("subcsribePattern", "subscribePattern"),
        ("kafka.bootstrap.server", "kafka.bootstrap.servers"),
        ("kafka.group_id", "kafka.group.id"),
        ("kafka.sesion.timeout.ms", "kafka.session.timeout.ms"),
    ],
)
def test_a_name_within_two_letters_of_one_of_ours_is_an_error(name: str, meant: str) -> None:
    with pytest.raises(InvalidInputError, match=f"unknown option {name.lower()}; did you mean {meant}"):
        parse_options({**LEAST, name.lower(): "x"})


@pytest.mark.parametrize(
    ("first", "second", "letters"),
    [("", "", 0), ("a", "", 1), ("topic", "topics", 1), ("ab", "ba", 1), ("abc", "cab", 2), ("path", "topic", 5)],
)
def test_letters_between_two_names(first: str, second: str, letters: int) -> None:
    assert edit_distance(first, second) == edit_distance(second, first) == letters


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("auto.offset.reset", "earliest", "startingOffsets says where a query starts"),
        ("enable.auto.commit", "true", "commits to its group when a batch is done: name the group by group.id"),
        ("key.deserializer", "x.StringDeserializer", "keys and values are handed over as binary: cast them"),
        ("value.deserializer", "x.StringDeserializer", "keys and values are handed over as binary: cast them"),
        ("interceptor.classes", "x.Y", "interceptors are classes of Java's"),
        ("ssl.cipher.suites", "TLS_AES_128_GCM_SHA256", "others than these would be used"),
        ("sasl.login.callback.handler.class", "x.Y", "it names a class of Java's"),
        ("config.providers", "file", "write the values themselves"),
        ("ssl.unheard.of", "x", "security may depend on it"),
        ("columns", "key", "without the prefix"),
    ],
)
def test_settings_that_may_not_be_passed_over_are_refused_by_the_name_they_were_given(
    name: str, value: str, words: str
) -> None:
    with pytest.raises(InvalidInputError, match=words) as caught:
        parse_options({**LEAST, f"kafka.{name}": value})
    assert f"the option kafka.{name} " in str(caught.value)


@pytest.mark.parametrize("name", ["startingOffsets", "endingOffsets"])
def test_a_malformed_start_or_end_is_an_error_of_load(name: str) -> None:
    """Spark's own source refuses it there too, so that a job sees it before it starts anything."""
    for more in ({name: "beginning"}, {f"{name}ByTimestamp": "{"}):
        with pytest.raises(InvalidInputError, match=f"^{name}(ByTimestamp)? must be "):
            KohortDataSource({**LEAST, **more}).schema()


@pytest.mark.parametrize("parse", [parse_options, parse_sink_options], ids=["source", "sink"])
def test_settings_of_brokers_and_logins_without_a_login_are_passed_over(parse: Any) -> None:
    """Jobs carry them in templates; Java's clients pass over them too."""
    more = {
        "kafka.security.protocol": "PLAINTEXT",
        "kafka.sasl.mechanism": "GSSAPI",
        "kafka.ssl.client.auth": "none",
        "kafka.security.inter.broker.protocol": "SSL",
        "kafka.sasl.enabled.mechanisms": "PLAIN",
    }
    least = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe" if parse is parse_options else "topic": "t"}
    login, brokers = parse({**least, **more}).ignored
    assert login.startswith("kafka.sasl.mechanism (there is no login unless kafka.security.protocol is SASL_SSL")
    assert brokers.count("kafka.") == 3 and brokers.endswith("(it is a setting of brokers)")
    with pytest.raises(InvalidInputError, match="^kafka.sasl.mechanism must be one of PLAIN"):
        parse({**least, **more, "kafka.security.protocol": "SASL_SSL"})


@pytest.mark.parametrize("shaded", ["", "kafkashaded."])
@pytest.mark.parametrize("package", ["", "secured."])
def test_javas_own_class_that_gets_tokens_is_what_the_client_does_by_itself(shaded: str, package: str) -> None:
    """Jobs on Event Hubs and other platforms name it, as their vendors' pages say."""
    handler = f"{shaded}org.apache.kafka.common.security.oauthbearer.{package}OAuthBearerLoginCallbackHandler"
    more = {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "OAUTHBEARER",
        "kafka.sasl.jaas.config": f"{shaded}org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule "
        "required clientId='me' clientSecret='x' scope='all';",
        "kafka.sasl.login.callback.handler.class": handler,
    }
    url = {"kafka.sasl.oauthbearer.token.endpoint.url": "https://login/token"}
    found = parse_options({**LEAST, **more, **url, "strictOptions": "true"})
    assert found.ignored == [] and "sasl.login.callback.handler.class" not in found.kafka
    for wrong in (more, {**more, **url, "kafka.sasl.login.callback.handler.class": "x.Y"}):
        with pytest.raises(InvalidInputError, match="it names a class of Java's"):
            parse_options({**LEAST, **wrong})


def test_assignors_are_named_as_javas_classes_too() -> None:
    java = "org.apache.kafka.clients.consumer."
    more = {"kafka.partition.assignment.strategy": f"{java}CooperativeStickyAssignor, {java}RangeAssignor"}
    assert parse_options({**LEAST, **more}).kafka["partition.assignment.strategy"] == "cooperative-sticky,range"
    more = {"kafka.partition.assignment.strategy": f"kafkashaded.{java}RoundRobinAssignor"}
    assert parse_options({**LEAST, **more}).kafka["partition.assignment.strategy"] == "roundrobin"
    with pytest.raises(InvalidInputError, match=r"names org\.me\.Mine, a class of Java's; there are range, roundrobin"):
        parse_options({**LEAST, "kafka.partition.assignment.strategy": "org.me.Mine"})


def test_a_reset_counts_where_the_groups_offsets_are_asked_for() -> None:
    more = {"group.id": "g", "startingOffsets": "committed", "kafka.auto.offset.reset": "earliest"}
    assert parse_options({**LEAST, **more}).kafka["auto.offset.reset"] == "earliest"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"kafka.session.timeout.ms": "soon"}, "^kafka.session.timeout.ms must be a whole number"),
        ({"kafka.isolation.level": "committed"}, "^kafka.isolation.level must be one of read_uncommitted"),
        (
            {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "SCRAM-SHA-512"},
            "^kafka.sasl.mechanism=SCRAM-SHA-512 needs kafka.sasl.username and kafka.sasl.password",
        ),
        (
            {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "OAUTHBEARER"},
            "a function that returns tokens can't be an option",
        ),
        ({"kafka.group.protocol": "new"}, "^kafka.group.protocol must be one of classic"),
    ],
)
def test_errors_show_settings_with_the_prefix_that_they_were_given_with(more: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        parse_options({**LEAST, **more})


@pytest.mark.kafka
def test_every_setting_of_javas_clients_is_decided() -> None:
    """Each is honoured, refused, or named with the reason why it has no effect; nothing is left to chance."""
    names = {"source": java_names("consumer.ConsumerConfig"), "sink": java_names("producer.ProducerConfig")}
    assert "fetch.max.bytes" in names["source"] and "linger.ms" in names["sink"]
    for side, config in (("source", ConsumerConfig), ("sink", ProducerConfig)):
        refused = {**REFUSED, **(REFUSED_OF_SOURCE if side == "source" else REFUSED_OF_SINK)}
        honoured = {
            name for found in settings(config).values() for name in (found.declaration.name, *found.declaration.aliases)
        }
        levels = {f"compression.{codec}.level" for codec in ("gzip", "lz4", "zstd")} if side == "sink" else set()
        decided = honoured | levels | set(refused) | set(WITHOUT_EFFECT)
        left = {name for name in names[side] if name not in decided and not name.startswith("sasl.oauthbearer.")}
        assert left == set()


def java_names(config: str) -> set[str]:
    """The names of settings in the page that a class of Kafka's own client prints."""
    jars = maven.jars("kafka", maven.KAFKA)
    command = ["java", "-XX:TieredStopAtLevel=1", "-cp", f"{jars}/*", f"org.apache.kafka.clients.{config}"]
    reported = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(re.findall(r'<a id="([a-z][a-z0-9.]+)">', reported.stdout))
