"""Properties of every history. Each is a function from a story to its violations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator

from tests.spark.histories.story import Batch, Story, Tasks

from kohort.ids import TopicPartition
from kohort.spark.source.batch_offset import OffsetRange

CLOCK_MS = 3
"""By how much two clocks of one machine, one of them in whole ms, may differ about one moment."""


def settles(story: Story) -> Iterator[str]:
    """When the faults are over all is read and committed; and no query fails of what is no fault of its world."""
    if story.unsettled:
        yield story.unsettled
    for run in story.runs:
        if not run.known:
            yield f"{run.application}'s run {run.number} failed: {run.error}"


def nothing_lost(story: Story) -> Iterator[str]:
    """Each record is in a batch that was finished, unless an event took it, or an administrator passed it over."""
    taken = {number for write in story.kept() for _, _, number in write.ids()}
    passed = set(passed_over(story))
    lost = [number for number in story.produced if number not in taken | story.removed | passed]
    for number in lost[:5]:
        partition, offset = story.produced[number]
        yield f"record {number}, {partition} at {offset}, is in no finished batch ({len(lost)} are not)"


def passed_over(story: Story) -> Iterator[int]:
    """Records that an administrator's commit jumps."""
    by_place = {place: number for number, place in story.produced.items()}
    for partition, commits in story.commits.items():
        before = 0
        for commit in commits:
            if commit.stamp is None and commit.offset is not None:
                yield from (
                    by_place[partition, offset]
                    for offset in range(before, commit.offset)
                    if (partition, offset) in by_place
                )
            before = commit.offset or 0


def rows_are_true(story: Story) -> Iterator[str]:
    """A row is the record of its offset, within its range, once; its range is what the batch's offset says."""
    for write in story.writes:
        seen = set()
        for partition, ranges in write.rows.items():
            if partition.topic in story.remade:
                continue
            for (_, start, end), rows in ranges:
                for offset, number in rows:
                    if story.produced.get(number) != (partition, offset):
                        yield f"{write.batch}: {partition} at {offset} has record {number}"
                    if not start <= offset < end:
                        yield f"{write.batch}: {partition} at {offset} is outside of its range {start} to {end}"
                    if (partition, offset) in seen:
                        yield f"{write.batch}: {partition} at {offset} is there twice"
                    seen.add((partition, offset))
                planned = write.tasks.ranges.get(partition)
                if planned != OffsetRange(start, end):
                    yield f"{write.batch}: rows of {partition} say {start} to {end}, its offset says {planned}"


def finished_batches_are_whole(story: Story) -> Iterator[str]:
    """The rows that a finished batch reports were in its sink: all of a range, or none of a released one."""
    by_place = {place: number for number, place in story.produced.items()}
    for write in story.kept():
        batch = write.batch
        for partition, span in write.tasks.ranges.items():
            rows = {offset for _, found in write.rows.get(partition, []) for offset, _ in found}
            if partition.topic in story.remade or (not rows and write.tasks.repeated):
                continue
            missing = [
                offset
                for offset in range(span.start, span.end)
                if offset not in rows and by_place.get((partition, offset), -1) not in story.removed
            ]
            if missing:
                yield f"{batch} finished without {partition} at {missing[0]} ({len(missing)} of {span} are missing)"


def repeats_are_exact(story: Story) -> Iterator[str]:
    """A batch that comes again has the ranges and the generation that it had, and what it reads again is the same."""
    first: dict[tuple[Batch, TopicPartition], tuple[tuple[int, int, int], dict[int, int]]] = {}
    for write in sorted(story.writes, key=lambda write: write.at_ns):
        for partition, ranges in write.rows.items():
            if partition.topic in story.remade:
                continue
            for reported, rows in ranges:
                before, had = first.setdefault((write.batch, partition), (reported, {}))
                if reported != before:
                    yield f"{write.batch} came again with {partition} {reported} instead of {before}"
                for offset, number in rows:
                    if had.setdefault(offset, number) != number:
                        yield f"{write.batch} came again with another record at {offset} of {partition}"


def starts_at_the_commit(story: Story) -> Iterator[str]:
    """A new batch begins where the group's offset stands: nothing that is committed is read again, nothing jumped."""
    if not story.grouped:
        return
    for tasks in story.tasks:
        if tasks.repeated:
            continue
        for partition, span in tasks.ranges.items():
            if span.start == span.end or partition.topic in story.remade:
                continue
            known = story.in_force(partition, tasks.called_ns / 1e6 - CLOCK_MS, tasks.at_ns / 1e6 + CLOCK_MS)
            if span.start not in known:
                yield f"{tasks.batch} of run {tasks.life} begins {partition} at {span.start}, committed was {known}"


def replays_what_is_its_own(story: Story) -> Iterator[str]:
    """With plannedRanges=owned a repeated batch leaves out what others, or an administrator, have gone on from."""
    if not story.grouped:
        return
    for write in story.writes:
        tasks = write.tasks
        if not tasks.repeated or tasks.planned_ranges == "all":
            continue
        for partition in write.rows:
            if partition.topic in story.remade:
                continue
            if tasks.planned_ranges == "none":
                yield f"{tasks.batch} was repeated with {partition}, though plannedRanges is none"
                continue
            since, until = tasks.called_ns / 1e6 - CLOCK_MS, tasks.at_ns / 1e6 + CLOCK_MS
            if not {None, tasks.ranges[partition].start} & story.in_force(partition, since, until):
                yield f"{tasks.batch} was repeated with {partition}, which others had gone on with"


def what_is_left_stays_left(story: Story) -> Iterator[str]:
    """If one run leaves a part out of a repeated batch, no later run reads that part in it.

    A sink that takes each batch once may have it without that part, and would skip it if it came later.
    """
    if not story.grouped:
        return
    left: dict[Batch, dict[TopicPartition, int]] = defaultdict(dict)
    for tasks in sorted(story.tasks, key=lambda tasks: tasks.at_ns):
        if not tasks.repeated or tasks.planned_ranges == "all":
            continue
        for partition, span in tasks.ranges.items():
            if not span.offset_count or partition.topic in story.remade:
                continue
            if partition not in tasks.reads:
                left[tasks.batch].setdefault(partition, tasks.life)
            elif partition in left[tasks.batch]:
                yield (
                    f"run {tasks.life} reads {partition} of {tasks.batch} again, "
                    f"which run {left[tasks.batch][partition]} left to the group"
                )


def available_now_reads_what_it_holds(story: Story) -> Iterator[str]:
    """A query that ends AvailableNow has read what it held when it looked last, unless the group had put it out."""
    by_place = {place: number for number, place in story.produced.items()}
    for run in story.runs:
        since_ms, until_ms = (at_ns / 1e6 for at_ns in run.read_ns)
        client = f"{run.application}-{run.number}"
        if any(client == name and since_ms - CLOCK_MS <= at_ms < until_ms for at_ms, name in story.evictions):
            continue
        for partition in sorted(run.held):
            if partition.topic in story.remade:
                continue
            known = story.in_force(partition, until_ms - CLOCK_MS, until_ms + CLOCK_MS)
            reached = max(offset or 0 for offset in known)
            numbers = (by_place.get((partition, offset)) for offset in range(reached, run.aims.get(partition, 0)))
            unread = [number for number in numbers if number is not None and number not in story.removed]
            if unread:
                yield (
                    f"{run.application}'s run {run.number} ended AvailableNow with {partition} at {reached}, "
                    f"{len(unread)} records before its aim"
                )


def commits_follow_sinks(story: Story) -> Iterator[str]:
    """A query's commit says only what finished batches of that query hold; commits never go back."""
    done: dict[tuple[str, TopicPartition], dict[int, int]] = defaultdict(dict)
    for write in story.kept():
        at_ns = story.finished[write.batch]
        for partition, offset, _ in write.ids():
            known = done[write.tasks.query, partition]
            known[offset] = min(at_ns, known.get(offset, at_ns))
    by_place = {place: number for number, place in story.produced.items()}
    for partition, commits in story.commits.items():
        if partition.topic in story.remade:
            continue
        before = 0
        for commit in commits:
            if commit.stamp is not None and commit.offset is not None:
                known = done[commit.stamp.query, partition]
                for offset in range(before, commit.offset):
                    number = by_place.get((partition, offset), -1)
                    if number not in story.removed and known.get(offset, 2**63) / 1e6 > commit.at_ms + CLOCK_MS:
                        yield f"{commit.stamp} committed {partition} at {commit.offset}, {offset} was not finished"
                        break
                if commit.offset < before:
                    yield f"{commit.stamp} took {partition} back from {before} to {commit.offset}"
            before = commit.offset or 0


def given_up_between_batches(story: Story) -> Iterator[str]:
    """While a query has a batch of a partition, no one else plans one of it, unless the group has put the query out.

    A query that was put out while it planned, and learned it later, may plan in the generation that it had.
    """
    if not story.grouped:
        return
    ended = {(run.application, run.number): run.ended_ns for run in story.runs}
    over = {tasks.batch: _over_ms(story, tasks) for tasks in story.tasks}
    by_partition: dict[TopicPartition, list[Tasks]] = defaultdict(list)
    for tasks in sorted(story.tasks, key=lambda tasks: tasks.at_ns):
        for partition, span in tasks.ranges.items():
            if span.start == span.end or tasks.repeated or partition.topic in story.remade:
                continue
            for other in by_partition[partition]:
                if other.batch.application == tasks.batch.application:
                    continue
                gone_ns = ended[other.batch.application, other.life]
                if over[other.batch] <= tasks.at_ns / 1e6 or gone_ns <= tasks.at_ns:
                    continue
                stale = tasks.generation < other.generation and _put_out(story, tasks, tasks)
                if not stale and not _put_out(story, other, tasks):
                    yield f"{tasks.batch} has {partition} while {other.batch} of run {other.life} is not over"
            by_partition[partition].append(tasks)


def _put_out(story: Story, who: Tasks, until: Tasks) -> bool:
    """Whether a query was put out of the group between its planning and another's."""
    client = f"{who.batch.application}-{who.life}"
    since_ms, until_ms = who.called_ns / 1e6 - CLOCK_MS, until.at_ns / 1e6 + CLOCK_MS
    return any(client == name and since_ms <= at_ms <= until_ms for at_ms, name in story.evictions)


def _over_ms(story: Story, tasks: Tasks) -> float:
    """When the last of a batch's ranges was committed, ms since the epoch."""
    latest = 0.0
    for partition, span in tasks.ranges.items():
        if span.start == span.end:
            continue
        when = [
            commit.at_ms
            for commit in story.commits.get(partition, [])
            if commit.stamp is not None and commit.stamp.query == tasks.query and commit.offset == span.end
        ]
        latest = max(latest, when[0] - CLOCK_MS if when else float("inf"))
    return latest


def one_checkpoint_reads_once(story: Story) -> Iterator[str]:
    """Without a group: batches of one checkpoint follow one another without gap or overlap."""
    if story.grouped:
        return
    reached: dict[tuple[str, int, TopicPartition], tuple[int, int]] = {}
    for tasks in sorted(story.tasks, key=lambda tasks: (tasks.batch, tasks.at_ns)):
        for partition, span in tasks.ranges.items():
            key = tasks.batch.application, tasks.batch.checkpoint, partition
            number, at = reached.get(key, (-1, 0))
            lost = any(
                place == partition and number in story.removed
                for number, (place, offset) in story.produced.items()
                if at <= offset < span.start
            )
            if number != tasks.batch.number and span.start != at and not lost:
                yield f"{tasks.batch} begins {partition} at {span.start}, the one before ended at {at}"
            reached[key] = tasks.batch.number, span.end


CHECKS: tuple[Callable[[Story], Iterator[str]], ...] = (
    settles,
    nothing_lost,
    rows_are_true,
    finished_batches_are_whole,
    repeats_are_exact,
    starts_at_the_commit,
    replays_what_is_its_own,
    what_is_left_stays_left,
    available_now_reads_what_it_holds,
    commits_follow_sinks,
    given_up_between_batches,
    one_checkpoint_reads_once,
)


def violations(story: Story) -> list[str]:
    """All of them, each with its property's name."""
    return [f"{check.__name__}: {text}" for check in CHECKS for text in check(story)]
