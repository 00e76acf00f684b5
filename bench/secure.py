"""The price of security: TLS beside Apache Kafka's TLS, and producing with and without the check of every record."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from tests.support.apache_kafka import SERVER_OPTIONS
from tests.support.maven import MavenUnavailable
from tests.support.secured_kafka import SecuredKafka, make_certificates

from bench.harness import JVM_WARM_S, Contender, Figure, Options, RunFailed, Sample, compare
from bench.peers import (
    KAFKA_SETTINGS,
    Place,
    drop_topic,
    filled_topic,
    java_consumer,
    java_producer,
    kafka_tools,
    new_topic,
    runner,
)
from bench.produce import on_fresh_topic
from kohort import Broker

_SIZE = 100
_PRODUCED = 4_000_000
_CONSUMED = 8_000_000
_CHECKED = 8_000_000
_CODECS = {"none": 1, "lz4": 1, "zstd": 2, "gzip": 8}
"""The codecs, and by what the number of records is divided: gzip takes the broker eight times as long."""
_ROWS = 2_500
"""Records of 100 bytes in a batch of 256 KiB."""
_END_S = 60


class Listeners(NamedTuple):
    """A broker's two listeners."""

    plain: Place
    tls: Place


def measurements(options: Options, console: Console) -> Iterator[Figure]:
    """TLS and plain at both brokers, then the check of records at ours."""
    yield from _over_tls(options, console)
    yield from _with_check(options, console)


# -- TLS


@contextmanager
def secured_brokers() -> Iterator[list[Listeners]]:
    """Our broker, and Apache Kafka where it can run, each with a plain listener, one with TLS, and an authorizer."""
    with ExitStack() as running:
        folder = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="kohort-bench-")))
        make_certificates(folder)
        config = folder / "client.properties"
        lines = ("security.protocol=SSL", "ssl.truststore.type=PEM", f"ssl.truststore.location={folder / 'ca.pem'}")
        config.write_text("\n".join(lines) + "\n")
        settings: dict[str, str | float] = {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(folder / "broker.pem"),
            "listener.security.protocol.map": "PLAIN:PLAINTEXT,TLS:SSL",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
            "group.initial.rebalance.delay.ms": 0,
        }
        listen = "PLAIN://127.0.0.1:0,TLS://127.0.0.1:0"
        ours = running.enter_context(Broker(folder / "data", settings, listen))
        plain = Place("kohort, plain", ours.listeners["PLAIN"], folder / "data")
        found = [Listeners(plain, replace(plain, name="kohort, TLS", servers=ours.listeners["TLS"]))]
        with suppress(MavenUnavailable):
            kafka = SecuredKafka(folder, KAFKA_SETTINGS, options=SERVER_OPTIONS)
            running.enter_context(kafka)
            plain = Place("Apache Kafka, plain", kafka.bootstrap_servers, kafka.log_dir, JVM_WARM_S)
            found.append(
                Listeners(plain, replace(plain, name="Apache Kafka, TLS", servers=f"127.0.0.1:{kafka.ports['TLS']}"))
            )
        yield [Listeners(pair.plain, replace(pair.tls, command_config=config)) for pair in found]


def _over_tls(options: Options, console: Console) -> Iterator[Figure]:
    """Each figure is related to Apache Kafka's TLS; the plain listeners show what TLS costs each broker."""
    titles = (f"Java ProducerPerformance over TLS, {_SIZE} B", f"Java ConsumerPerformance over TLS, {_SIZE} B")
    if not any(options.only in title for title in titles):
        return
    with kafka_tools() as tools, secured_brokers() as brokers:
        places = [(pair.plain, place) for pair in brokers for place in (pair.tls, pair.plain)]
        baseline = brokers[-1].tls.name

        def produce(place: Place) -> Callable[[str], Sample]:
            return lambda topic: java_producer(tools, place, topic, options.records(_PRODUCED), _SIZE)

        def consume(place: Place, topic: str) -> Callable[[], Sample]:
            return lambda: java_consumer(tools, place, topic, options.records(_CONSUMED))

        def shown(title: str, jobs: list[Callable[[], Sample]]) -> Figure:
            contenders = [
                Contender(place.name, job, place.warm_s if options.scale >= 1 else 0.0)
                for (_, place), job in zip(places, jobs, strict=True)
            ]
            return compare(title, contenders, rounds=options.rounds, baseline=baseline, console=console)

        if options.only in titles[0]:
            yield shown(titles[0], [on_fresh_topic(admin, produce(place)) for admin, place in places])
        if options.only in titles[1]:
            topics = {pair.plain: filled_topic(pair.plain, options.records(_CONSUMED), _SIZE) for pair in brokers}
            yield shown(titles[1], [consume(place, topics[admin]) for admin, place in places])
            for admin, topic in topics.items():
                drop_topic(admin, topic)


# -- The check of every batch


class CheckedBroker(NamedTuple):
    """A broker in a process of its own, with the check of records or without it."""

    place: Place
    pid: int

    def cpu_s(self) -> float:
        """The processor time that it has taken."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def _broker_by_check(kind: str) -> Iterator[CheckedBroker]:
    with tempfile.TemporaryDirectory(prefix="kohort-bench-") as folder:
        command = [sys.executable, "-m", "bench.runners.broker_by_check", folder, kind]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert process.stdout is not None
        try:
            words = process.stdout.readline().split()
            if words[:1] != ["ready"]:
                raise RunFailed("the broker did not start")
            yield CheckedBroker(Place(kind, words[1], Path(folder)), process.pid)
        finally:
            process.terminate()
            process.wait(_END_S)
            process.stdout.close()


def _with_check(options: Options, console: Console) -> Iterator[Figure]:
    """For each codec, related to a broker without the check. The broker's own time shows more than the rate does."""
    titles = {codec: f"produce {_SIZE} B with and without the check of records, {codec}" for codec in _CODECS}
    if not any(options.only in title for title in titles.values()):
        return
    with _broker_by_check("checked") as checked, _broker_by_check("unchecked") as unchecked:

        def produce(broker: CheckedBroker, codec: str, count: int) -> Sample:
            topic = new_topic(broker.place, 2)
            try:
                before = broker.cpu_s()
                args = [broker.place.servers, topic, str(count), str(_SIZE), codec, str(_ROWS)]
                sample = runner("raw_produce", args, count // _ROWS // 2 * _ROWS * 2)
                spent = broker.cpu_s() - before
            finally:
                drop_topic(broker.place, topic)
            return replace(sample, facts={"broker's ns/record": spent / sample.amount * 1e9})

        for codec, divisor in _CODECS.items():
            if options.only not in titles[codec]:
                continue
            count = max(2 * _ROWS, options.records(_CHECKED // divisor))
            contenders = [
                Contender(broker.place.name, partial(produce, broker, codec, count)) for broker in (unchecked, checked)
            ]
            yield compare(titles[codec], contenders, rounds=options.rounds, console=console)
