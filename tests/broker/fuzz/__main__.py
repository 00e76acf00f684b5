"""`python -m tests.broker.fuzz --minutes 10`: prints each finding with its seed and bytes; exits with 1 if any."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.broker.fuzz.run import Run


def main() -> int:
    """Run as the options say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", type=int, help="a single case of the seed")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kohort-fuzz-") as folder:
        run = Run(Path(folder), options.seed, lambda text: print(text, flush=True))
        report = run.go(sys.maxsize, options.minutes * 60, options.only)
    for finding in report.findings:
        print(finding)
    print(f"seed {options.seed}: {report.text()}")
    return 1 if report.findings else 0


if __name__ == "__main__":
    sys.exit(main())
