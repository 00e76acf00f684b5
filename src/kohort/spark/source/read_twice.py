"""The check for queries that read a topic twice in one group, where each source would silently get some of the records.

Spark reads every `load()` of a query by a separate source, in a process that does not know which query it belongs to.
The driver program sees the plan of a query when it starts, before Spark makes its sources. It locks a file named after
the options of each such `load()`, and a source checks for that file before it joins the group.

On Spark Connect the driver program does not see plans. There, `single_reader_lock.py` warns of equal options.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

from kohort.errors import InvalidInputError
from kohort.spark.options import SourceOptions, parse_options
from kohort.spark.source.single_reader_lock import LoadCall, ReaderLock
from kohort.spark.topic_pattern import parse_topic_pattern

RELATION = "StreamingRelationV2"
"""The leaf of Spark's plan that stands for one `load()` of a stream."""


def sources_in_plan(plan: Any) -> list[dict[str, str]]:
    """Return the options of each kohort source in a query's analyzed plan; empty if there are fewer than two.

    Equal leaves of the plan count once, since Spark makes one source for them.

    Args:
        plan: an object of Spark's class `LogicalPlan`, by py4j.
    """
    leaves = plan.collectLeaves()
    found: list[Any] = []
    for number in range(leaves.size()):
        leaf = leaves.apply(number)
        ours = leaf.getClass().getSimpleName() == RELATION and leaf.sourceName() == "kohort"
        if ours and not any(leaf.equals(known) for known in found):
            found.append(leaf)
    return [dict(leaf.extraOptions().asCaseSensitiveMap()) for leaf in found] if len(found) > 1 else []


def find_double_reads(loads: Sequence[Mapping[str, str]]) -> list[Mapping[str, str]]:
    """Return the options of those sources (`load()`s) of a query that read a topic in the same group as another.

    Sources with invalid options are left out: they fail by themselves.
    """
    parsed = [(raw, options) for raw in loads if (options := _member(raw)) is not None]
    twice = [pair for pair in combinations(parsed, 2) if _overlap(pair[0][1], pair[1][1])]
    return [raw for raw, _ in parsed if any(raw is load for pair in twice for load, _ in pair)]


def _member(raw: Mapping[str, str]) -> SourceOptions | None:
    """Parse the options of a source that joins a group; None if it does not, or its options are invalid."""
    try:
        options = parse_options(raw)
    except InvalidInputError:
        return None
    alone = options.group_id is None or options.assign is not None or options.region_session is not None
    return None if alone else options


def _overlap(first: SourceOptions, second: SourceOptions) -> bool:
    """Return whether two sources, by their options, are members of one group and may read a common topic."""
    if first.group_id != second.group_id or _brokers(first).isdisjoint(_brokers(second)):
        return False
    if first.subscribe_pattern is not None and second.subscribe_pattern is not None:
        return not _are_disjoint(first.subscribe_pattern, second.subscribe_pattern)
    for pattern, topics in ((first, second), (second, first)):
        if pattern.subscribe_pattern is not None:
            finds = parse_topic_pattern(pattern.subscribe_pattern).matches_topic
            return any(finds(topic) for topic in topics.subscribe or ())
    return bool(set(first.subscribe or ()) & set(second.subscribe or ()))


def _are_disjoint(first: str, second: str) -> bool:
    """Return whether two patterns surely match no common topic, because names begin with different letters.

    Patterns of any other form may match the same topic, perhaps one that is created later.
    """
    first_letters, second_letters = _beginning(first), _beginning(second)
    return not (first_letters.startswith(second_letters) or second_letters.startswith(first_letters))


def _beginning(pattern: str) -> str:
    """Return the letters that every matching name begins with; empty if that can't be determined."""
    if "|" in pattern:
        return ""
    found = re.match(r"\^((?:[\w-]|\\.)*)([*?{+]?)", pattern)
    if found is None:
        return ""
    letters = found[1].replace("\\", "")
    return letters[:-1] if found[2] else letters


def _brokers(options: SourceOptions) -> frozenset[str]:
    return frozenset(address.strip() for address in options.bootstrap_servers.split(","))


def _name(load: LoadCall) -> str:
    return f"twice-{load.likeness}"


def refuse_read_twice(load: LoadCall, options: SourceOptions) -> None:
    """Refuse a source if another source of its query reads one of its topics in the same group.

    Raises:
        InvalidInputError: the query has two such sources.
        OSError: files can't be locked here.
    """
    if not ReaderLock.is_held(_name(load)):
        return
    reads = options.subscribe_pattern or ", ".join(options.subscribe or ())
    raise InvalidInputError(
        f"this query reads {reads} twice in the group {options.group_id}: by two load()s, or by one load() on both "
        "sides of a join or union. As two members of one group, each side would get a part of the records only. "
        "load() once for each side, each with a group.id of its own"
    )


class DoubleReads:
    """The running queries that read a topic twice in one group, recorded so that their sources refuse to start.

    A locked file tells each source's process; the name is derived from the options of its `load()`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._claims: dict[str, ReaderLock] = {}  # by name; a restarted run has the names of its predecessor
        self._runs: dict[str, set[str]] = {}

    def mark_run_sources(self, run: str, loads: Iterable[Mapping[str, str]]) -> None:
        """Mark the sources of a run that read a topic twice, so that they refuse to start.

        Raises:
            OSError: files can't be locked here.
        """
        names = {_name(LoadCall.from_options(raw)) for raw in find_double_reads(list(loads))}
        if not names:
            return
        with self._lock:
            self._runs[run] = names
            for name in sorted(names - self._claims.keys()):
                claim = ReaderLock.acquire(name)
                if claim is not None:
                    self._claims[name] = claim

    def forget_run(self, run: str) -> None:
        """Forget a run that has ended, and unlock the lock files of its sources, unless another run marks them too."""
        with self._lock:
            names = self._runs.pop(run, set())
            left = names.difference(*self._runs.values())
            claims = [claim for name in sorted(left) if (claim := self._claims.pop(name, None)) is not None]
        for claim in claims:
            claim.release()
