"""The demo: a year of flights through one consumer group of two Spark queries, one of which is killed.

`run(options)` runs all of it.

- telling.py begins and ends a run, cast.py has its common parts: applications, topic, group, waits.
- flights.py reads the data, feed.py replays it.
- member.py is a Spark application, story.py is the script of the demo.
- account.py counts every flight once, report.py and picture.py show the result.

With `region`, three queries of two applications are in a consistent region:

- region_member.py is such an application, region_story.py is the script of the demo.
- history.py reads the region's topic, places.py has the sinks, watching.py reads from the sinks all the time.
- region_account.py counts every flight once, region_report.py shows the result.
"""

from __future__ import annotations

from kohort.demo.settings import DemoOptions

__all__ = ["DemoOptions", "run"]


def run(options: DemoOptions) -> int:
    """Run the demo from start to end.

    Returns:
        0 if every flight was counted once, 1 otherwise.

    Raises:
        KafkaError: something that the demo needs is missing or did not come up; the text says what.
    """
    from kohort.demo.telling import tell

    return tell(options)
