"""In which order several workers are given the files of the tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

LONG = tuple(
    f"tests/{name}"
    for name in (
        "documentation/test_snippets.py",
        "peers/churn/test_churn.py",
        "demo/test_demo.py",
        "peers/suites/test_suites.py",
        "spark/region/test_taken_back.py",
        "spark/everywhere/test_everywhere.py",
        "spark/test_first_trigger.py",
        "spark/test_push.py",
        "spark/test_two_sources.py",
        "spark/test_listener.py",
        "frameworks/test_runs.py",
        "region/test_region.py",
        "region/test_closing.py",
        "region/test_handlers.py",
        "region/test_link.py",
        "region/test_away_sinks.py",
        "region/test_iceberg_rest.py",
        "region/test_dead_letters.py",
        "spark/region/test_dead_letters.py",
        "spark/region/test_kills.py",
        "spark/region/test_face.py",
        "spark/region/test_in_one_process.py",
        "cluster/test_coordinator_places.py",
        "spark/test_group.py",
        "documentation/test_distribution.py",
        "spark/test_workers.py",
        "region/test_kills.py",
        "region/test_histories.py",
        "spark/region/test_slow_start.py",
        "cluster/test_chaos.py",
        "client/test_replicas.py",
        "client/test_lives.py",
        "simulation/test_clients.py",
        "client/test_missing_topics.py",
        "cluster/test_group_coordination.py",
        "cluster/test_broker_zookeeper.py",
        "peers/test_tools_alike.py",
        "spark/test_public_jobs.py",
        "spark/test_ports.py",
        "spark/test_topic_pattern.py",
        "spark/test_reasons.py",
        "client/test_keystore.py",
        "spark/test_sink.py",
        "spark/region/test_folders.py",
        "spark/test_checkpoint_move.py",
        "spark/test_in_place_of_kafka.py",
        "spark/test_kafka_offsets.py",
        "lag/test_exporter_shares.py",
        "cli/test_record_output.py",
        "cli/test_records.py",
    )
)
"""Files with tests of more than fifteen seconds, the longest first: what begins last, one worker ends alone."""


def ordered(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Long files first, then those with many tests."""
    counts = Counter(item.location[0] for item in items)
    ranks = {name: rank for rank, name in enumerate(LONG)}

    def place(item: pytest.Item) -> tuple[int, int]:
        file = item.location[0]
        return ranks.get(file, len(LONG)), -counts[file]

    return sorted(items, key=place)
