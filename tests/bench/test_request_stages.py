"""The bench of a request's stages: each kind of request runs, and its stages are named."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from bench.request_stages import KINDS

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.parametrize("kind", KINDS)
def test_stages_of_a_request_are_measured(kind: str) -> None:
    """The process is another one, as the bench wraps functions of the broker."""
    words = [kind, "2", "--bursts", "1", "--rounds", "1", "--json"]
    command = [sys.executable, "-m", "bench.request_stages", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    result = json.loads(done.stdout)
    assert {"framing", "dispatch", "handler", "machine: a step", "shard: answers"} <= result["stages"].keys()
    assert ("journal: append" in result["stages"]) == (kind == "commit")
    assert result["whole"] > 0
