"""A soak of seconds: every part starts, is killed or ended, and every record is accounted for."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.soak.picture import drawing
from tests.soak.run import Soak


@pytest.mark.timeout(600)
def test_a_quarter_of_a_minute(tmp_path: Path) -> None:
    log: list[str] = []
    report = Soak(tmp_path, seed=5, rate=100, spark=False, say=log.append).run(minutes=0.25, fault_s=3)
    assert report.violations == [], log
    assert set(report.accounts) == {"transactions", "consumer", "push", "coordinated", "region"}
    assert {account.produced for account in report.accounts.values()} == {sum(report.produced.values())} != {0}
    assert sum(report.faults.values()) >= 3
    assert report.answered["exporter"] and report.answered["dashboard"]
    picture = ElementTree.fromstring(drawing(report))
    curves = picture.findall("{http://www.w3.org/2000/svg}polyline")
    assert len(curves) == len(report.samples) >= 15
    assert all(len(curve.attrib["points"].split()) >= 2 for curve in curves)
