"""An application with queries of a region: a Spark of its own, `python -m kohort.demo.region_member SETTINGS`.

It ends with a last sequence when its standard input is closed.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from kohort.demo.member import FLIGHT, say, session
from kohort.demo.member_settings import RegionMemberSettings
from kohort.demo.places import COLUMNS, KINDS, Faltering, omen
from kohort.region import Sink
from kohort.spark import SparkRegion

log = logging.getLogger("kohort.demo")
START = "beginning"


def delays(flights: DataFrame) -> DataFrame:
    """Return a row for each flight, with its record's partition and offset."""
    flight = f.from_json(f.col("value").cast("string"), FLIGHT)
    return flights.select("partition", "offset", flight.alias("v")).select(
        "partition", "offset", *(f.col(f"v.{name}") for name in COLUMNS[2:])
    )


def sink_of(settings: RegionMemberSettings, query: str) -> Sink:
    """Return the sink of a query."""
    folder = Path(settings.folder)
    sink = KINDS[settings.queries[query]](folder).sink()
    return Faltering(sink, omen(folder)) if query == settings.faltering else sink


def main(argument: str) -> int:
    """Run until standard input ends.

    Args:
        argument: RegionMemberSettings as JSON.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    settings = RegionMemberSettings(**json.loads(argument))
    spark = session(settings)
    say("started", member=settings.name)
    client: dict[str, Any] = {name.replace(".", "_"): value for name, value in settings.client.items()}
    region = SparkRegion(
        spark,
        settings.region,
        settings.servers,
        folder=Path(settings.folder) / "checkpoints",
        checkpoint_every=settings.checkpoint_every,
        **client,
    )
    for query in settings.queries:
        region.query(query, delays, source=settings.options, into=sink_of(settings, query), start=START)

    def close_at_the_end() -> None:
        sys.stdin.read()
        region.close()

    threading.Thread(target=close_at_the_end, daemon=True).start()
    try:
        region.run()
    except Exception as error:
        log.exception("the region's queries have ended")
        say("failed", member=settings.name, error=str(error))
        return 1
    say("stopped", member=settings.name)
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
