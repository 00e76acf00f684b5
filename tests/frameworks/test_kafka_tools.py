"""The output of Kafka's command line programs is read as records, whole lines alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from frameworks.__main__ import FRAMEWORKS
from frameworks.account import Numbered
from frameworks.go_frameworks import module_version
from frameworks.javascript_frameworks import package_version
from frameworks.kafka_tools import ToolOutput, VerifiableOutput

VERIFIABLE_LINES = (
    '{"timestamp":1,"name":"partitions_assigned","partitions":[{"topic":"numbers-in","partition":0}]}\n',
    '{"timestamp":2,"name":"record_data","key":"key-3","value":"7","topic":"numbers-in","partition":0,"offset":1}\n',
    '{"timestamp":2,"name":"record_data","key":"key-3","val',
)


def test_console_lines_are_records_and_other_lines_are_not(tmp_path: Path) -> None:
    path = tmp_path / "member.log"
    output = ToolOutput([path])
    path.write_text("key-1\t4\n[2026-11-27] WARN disconnected\nkey-2\t5\nkey-1\t")
    assert output.read_more() == [Numbered("key-1", 4), Numbered("key-2", 5)]
    with path.open("a") as file:
        file.write("5\n")
    assert output.read_more() == [Numbered("key-1", 5)]
    output.close()


def test_verifiable_consumer_reports_records(tmp_path: Path) -> None:
    path = tmp_path / "member.log"
    output = VerifiableOutput([path])
    path.write_text("".join(VERIFIABLE_LINES))
    assert output.read_more() == [Numbered("key-3", 7)]
    output.close()


def test_line_that_a_killed_consumer_left_is_skipped() -> None:
    assert VerifiableOutput([]).parse_line(VERIFIABLE_LINES[2] + VERIFIABLE_LINES[0].strip()) is None


def test_versions_are_those_of_the_pins() -> None:
    assert module_version("github.com/twmb/franz-go").count(".") == 2
    assert package_version("kafkajs") == "2.2.4"
    with pytest.raises(KeyError):
        module_version("github.com/nobody/nothing")


def test_names_are_unique() -> None:
    names = [framework.name for framework in FRAMEWORKS]
    assert sorted(names) == sorted(set(names))
