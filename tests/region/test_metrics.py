"""A region's figures, as Prometheus reads them."""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kohort.errors import InvalidInputError, KafkaError
from kohort.region.region import Region
from tests.region.conftest import Collected, Worker, fill, make_topic
from tests.support.waiting import until

Samples = dict[tuple[str, ...], float]


def scraped(address: str | None) -> Samples:
    """By name, and labels other than the region."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return {
        (sample.name, *(value for label, value in sample.labels.items() if label != "region")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture
def topic(own_servers: str, name: str) -> str:
    make_topic(own_servers, name)
    fill(own_servers, name, range(100))
    return name


def test_members_and_the_control_plane_where_it_is(own_servers: str, topic: str, regions: list[Region]) -> None:
    sink = Collected()
    for _ in range(2):
        regions.append(Region(topic, own_servers, checkpoint_every="200ms", metrics_listen="127.0.0.1:0"))
        regions[-1].describe()
    workers = [Worker(region, f"m{number}", sink, topic) for number, region in enumerate(regions)]
    until(
        lambda: len(sink.rows()) == 100 and all(worker.consumer.metrics.partitions == 2 for worker in workers),
        "all read",
    )
    regions[1].reset()
    until(lambda: all(worker.consumer.metrics.resets > 0 for worker in workers), "all went back")
    before = workers[0].consumer.sequence
    until(lambda: all(worker.consumer.sequence > before for worker in workers), "another sequence")

    earlier = [worker.consumer.metrics.resets for worker in workers]
    first, second = (scraped(region.metrics_address) for region in regions)
    for number, samples in enumerate((first, second)):
        label = (f"m{number}",)
        assert samples["kohort_region_member_partitions", *label] == 2
        assert samples["kohort_region_member_topics", *label] == 1
        resets = samples["kohort_region_member_resets_total", *label]
        assert 1 <= earlier[number] <= resets <= workers[number].consumer.metrics.resets
        assert samples["kohort_region_member_sequences_total", *label] > 1
        longest = samples["kohort_region_member_longest_drain_seconds", *label]
        assert 0 <= samples["kohort_region_member_drain_seconds", *label] <= longest
        assert ("kohort_region_member_partitions", f"m{1 - number}") not in samples
    assert first["kohort_region_term",] == 1 and first["kohort_region_members",] == 2
    assert first["kohort_region_sequence",] > 1 and first["kohort_region_unpublished",] in (0, 1)
    assert first["kohort_region_sink_unpublished", sink.place] == first["kohort_region_unpublished",]
    assert first["kohort_region_resets_total", "asked"] == 1
    assert first["kohort_region_sequence_seconds",] <= first["kohort_region_longest_sequence_seconds",]
    assert sum(value for key, value in first.items() if key[0] == "kohort_region_state") == 1
    assert ("kohort_region_term",) not in second
    for worker in workers:
        worker.close()


def test_a_region_of_one_member_has_metrics_too(own_servers: str, topic: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "kohort", "region", "serve", topic, "--metrics-listen", "127.0.0.1:0"]
    command += ["--bootstrap-server", own_servers]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stderr is not None
            assert process.stdout.readline() == "ready 1\n"
            told = [process.stderr.readline()]
            while told[-1] and "/metrics" not in told[-1]:  # a busy machine has other lines first
                told.append(process.stderr.readline())
            found = re.search(r"http://(127\.0\.0\.1:\d+)/metrics", told[-1])
            assert found is not None, told
            state = ("kohort_region_state", "RUNNING")
            until(lambda: scraped(found[1]).get(state) in (0, 1), "the plane's state is shown", 60)
        finally:
            process.terminate()


def test_an_address_that_can_not_be(own_servers: str, regions: list[Region]) -> None:
    with pytest.raises(InvalidInputError, match="HOST:PORT"):
        Region("r", own_servers, metrics_listen="here")
    regions.append(Region("r", own_servers, metrics_listen="127.0.0.1:0"))
    with pytest.raises(KafkaError, match="can't serve metrics"):
        Region("r", own_servers, metrics_listen=regions[0].metrics_address)
