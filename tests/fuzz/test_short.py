"""The short form of `make fuzz`: every kept input as it stands, and a few changed ones of each kind."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.fuzz.corpus import FOLDER, read_corpus
from tests.fuzz.parsers import PARSERS, ParserTarget
from tests.fuzz.run import FuzzRun

CASES = 60


@pytest.mark.timeout(300)
def test_strangers_leave_nothing_and_decoders_keep_their_promises(tmp_path: Path) -> None:
    """Seeds of other runs: KOHORT_FUZZ_SEED."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    report = FuzzRun(tmp_path, int(os.environ.get("KOHORT_FUZZ_SEED", "1")), print).go(CASES, 120)
    assert not report.findings, "\n".join(report.findings)
    assert report.honest > 0
    assert {target.name for target in PARSERS} <= report.inputs.keys()


def test_corpus_is_of_the_targets_and_small() -> None:
    assert {file.stem for file in FOLDER.glob("*.txt")} == {target.name for target in PARSERS} | {"tls"}
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) < 400_000


@pytest.mark.parametrize("target", PARSERS, ids=lambda target: target.name)
def test_valid_inputs_of_the_corpus_get_through(target: ParserTarget) -> None:
    """A target whose honest inputs are refused at the first check would look at nothing."""
    outcomes = {title: target.check(data) for title, data in read_corpus(target.name).items()}
    expected = {"jose": "valid", "records": "read; accepted", "region-frames": "member, 4 bodies"}
    for title, outcome in outcomes.items():
        if title.startswith("valid"):
            assert outcome == expected.get(target.name, "logged in")
    assert len(set(outcomes.values())) > 1 or target.name in ("acls", "certificates")
