"""`python -m tests.fuzz --minutes 60`: prints each finding with its seed; exits with 1 if there is any."""

from __future__ import annotations

import argparse
import faulthandler
import sys
import tempfile
import time
from pathlib import Path

from tests.fuzz.run import FuzzRun
from tests.fuzz.seeds import write_seeds


def main() -> int:
    """Run as the options say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", type=int, help="a single case of the seed")
    parser.add_argument("--grow", action="store_true", help="add inputs with new outcomes to the corpus")
    parser.add_argument("--write-corpus", action="store_true", help="write the corpora that are missing, and end")
    options = parser.parse_args()
    if options.write_corpus:
        write_seeds()
        return 0
    faulthandler.dump_traceback_later(options.minutes * 60 + 600, exit=True)
    with tempfile.TemporaryDirectory(prefix="kohort-fuzz-") as folder:
        run = FuzzRun(Path(folder), options.seed, lambda text: print(text, flush=True), grows=options.grow, keeps=True)
        report = run.go(sys.maxsize, options.minutes * 60, options.only)
    print(f"seed {options.seed}: {report.text()}")
    return 1 if report.findings else 0


if __name__ == "__main__":
    sys.exit(main())
