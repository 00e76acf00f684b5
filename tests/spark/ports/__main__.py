"""Every job of the list under both formats in one session: `python -m … FOLDER SERVERS JAR[,JAR…] [NAME…]`.

Writes `outcomes.json` into the folder: for each job and format its rows, or its error, and the seconds it took. A job
that Spark refuses with our source runs twice more. One run has its author's change. The other is unchanged, in a
session with our source in place of Spark's own.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from tests.spark.both_sources import FORMATS, LATE, STARTS, session
from tests.spark.ports.job_site import JOBS, JobSite, Run, text_of

from kohort.spark import register
from kohort.spark.in_place_of_kafka import CHANGES

CHAPTERS = (
    "files",
    "state",
    "tables",
    "batches",
    "pipelines",
    "wrappers",
    "snippets",
    "answers",
    "monitors",
    "progress",
    "habits",
    "reports",
    "exchanges",
    "restarts",
    "launchers",
    "streams",
    "looks",
)


def listed() -> dict[str, Any]:
    """The list, with every chapter."""
    for chapter in CHAPTERS:
        importlib.import_module(f"tests.spark.ports.{chapter}")
    return dict(JOBS)


def main(folder: Path, servers: str, jars: str, names: list[str]) -> None:
    """Run the named jobs, or all."""
    spark = session(jars)
    outcomes: dict[str, dict[str, Any]] = {}
    for name, job in listed().items():
        if names and name not in names:
            continue
        runs = {kind: (job.run, kind) for kind in FORMATS}
        if job.mended is not None:
            runs["mended"] = (job.mended, "kohort")
        outcomes[name] = {}
        for label, (run, source) in runs.items():
            site = JobSite(spark, servers, folder, f"{name}-{label}-")
            outcomes[name][label] = surely(run, source, site)
            (folder / "outcomes.json").write_text(json.dumps(outcomes))
    unchanged(spark.newSession(), JobSite(spark, servers, folder, ""), outcomes)
    (folder / "outcomes.json").write_text(json.dumps(outcomes))
    spark.stop()


def unchanged(session: SparkSession, site: JobSite, outcomes: dict[str, dict[str, Any]]) -> None:
    """Run the refused jobs as they stand, in a session that has ours in place of Spark's own source."""
    register(session, in_place_of_kafka=True)
    for name in outcomes:
        if JOBS[name].refused is not None:
            before = CHANGES.counts.copy()
            found = surely(JOBS[name].run, "kafka", replace(site, spark=session, prefix=f"{name}-unchanged-"))
            outcomes[name]["unchanged"] = found | {"changes": dict(CHANGES.counts - before)}


def surely(run: Run, source: str, site: JobSite) -> dict[str, Any]:
    """The outcome of a job, tried again in a fresh place where Spark's Python process came up late."""
    for number in range(STARTS):
        prefix = f"{site.prefix}{number}-"
        folder = site.folder / prefix
        folder.mkdir()
        found = outcome(run, source, replace(site, folder=folder, prefix=prefix))
        if LATE not in found.get("error", ""):
            break
    return found


def outcome(run: Run, source: str, site: JobSite) -> dict[str, Any]:
    """Rows of a job, in order of their text, or its error."""
    started = time.monotonic()
    try:
        rows = sorted(text_of(row, site.prefix) for row in run(site.spark, source, site))
    except Exception as error:  # noqa: BLE001 - whatever a job ends with is its outcome
        return {"error": str(error)[:20_000], "seconds": time.monotonic() - started}
    return {"rows": rows, "seconds": time.monotonic() - started}


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:])
