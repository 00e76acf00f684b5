"""The demo: a year of flights through one consumer group of two Spark queries, one of which is killed.

`run(options)` is the whole of it. flights.py reads the data, feed.py replays it, telling.py begins and ends it, cast.py
has what every run needs: applications, topic, group, waits. member.py is a Spark application, story.py says what
happens when, account.py counts every flight once, report.py and picture.py show what came out.

With `region` three queries of two applications are in a consistent region: region_member.py is such an application,
region_story.py says what happens when, history.py reads what the region writes down of itself, places.py has the sinks,
watching.py a reader of theirs that looks all the time, region_account.py counts, region_report.py shows.
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
