"""The list of long tests names tests that exist and leaves a short form of each file."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from fnmatch import fnmatchcase

import pytest

from tests.support.long_runs import LIST, patterns

ROOT = LIST.parents[1]
SHORT_FORM_ELSEWHERE = [
    "tests/client/test_three_brokers.py",  # cluster/test_topics_of_three.py has three brokers, too
    "tests/peers/test_otlp_collector.py",  # lag/test_otlp.py reads what is sent with OpenTelemetry's own messages
    "tests/peers/test_tools_alike.py",  # peers/test_apache_kafka_tools.py runs the tools at our broker
    "tests/region/test_cloud_stores.py",  # region/test_parquet_s3.py and test_delta_s3.py do the same on S3
    "tests/spark/region/test_slow_start.py",
]
"""Files of which `make test` runs nothing."""


@pytest.fixture(scope="module")
def collected(request: pytest.FixtureRequest) -> dict[str, list[str]]:
    """The node ids of the files that the list names, by file: of this run, when it has all files."""
    files = sorted({pattern.partition("::")[0] for pattern in patterns()})
    found = defaultdict(list)
    for item in request.session.items:
        found[item.nodeid.partition("::")[0]].append(item.nodeid)
    chosen = request.config.option.keyword or request.config.option.markexpr
    if not chosen and set(files) <= set(found):
        return {file: found[file] for file in files}
    listing = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *files],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    found.clear()
    for line in listing.splitlines():
        if re.match(r"tests/\S+\.py::", line):
            found[line.partition("::")[0]].append(line)
    return found


def test_each_pattern_matches_a_test(collected: dict[str, list[str]]) -> None:
    stale = [
        pattern
        for pattern in patterns()
        if not any(fnmatchcase(test, pattern) for test in collected[pattern.partition("::")[0]])
    ]
    assert stale == []


def test_files_keep_a_short_form(collected: dict[str, list[str]]) -> None:
    """A file whose tests were all long would not run at all; one test of its own may stand in another file."""
    whole = [
        file
        for file, tests in collected.items()
        if all(any(fnmatchcase(test, pattern) for pattern in patterns()) for test in tests)
    ]
    assert whole == SHORT_FORM_ELSEWHERE
