"""Faults planted in a region's machines and its sink: the world's checkers must see each of them.

Rules that the machines check twice or three times are not here, since one such fault alone costs a reset and no record.
Examples are the members that may get a start, and the contributions of a returning member. `test_plane.py` holds each
of those alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

from kohort.errors import OffsetError, RetriableError
from kohort.region import agreement, region_log, region_topic
from kohort.region.agreement import (
    CheckpointIdBounds,
    LastCheckpoint,
    SinkDisagreement,
    compare_sink_with_topic,
    records_after_adoption,
)
from kohort.region.consumer import RegionConsumer
from kohort.region.consuming import staging
from kohort.region.consuming.event_thread import EventThread
from kohort.region.consuming.staging import RowStager
from kohort.region.consuming.work_queue import RecordQueue
from kohort.region.control_plane import checkpoints, membership
from kohort.region.control_plane.checkpoints import Checkpoints
from kohort.region.control_plane.events import RegionRunning, ResetRequest
from kohort.region.control_plane.machine import TABLE
from kohort.region.control_plane.membership import RegionMembers
from kohort.region.control_plane.recovery import Recovery
from kohort.region.control_plane.starts import StartOffsets
from kohort.region.control_plane.state import ControlPlaneState, RegisteredMember
from kohort.region.fact_table import FactTable
from kohort.region.keyed_state import place
from kohort.region.keyed_state.place import RegionStateStore
from kohort.region.keyed_state.states import KeyedStates, LoadedKeyedState
from kohort.region.member import state
from kohort.region.member.machine import TABLE as MEMBER
from kohort.region.member.machine import MemberMachine
from kohort.region.messages import CheckpointCompleted, DrainOrder, MemberDrained, ResetOrder
from kohort.region.record_codec import encode_fact_key, encode_fact_value
from kohort.region.records import KeyedStateChainHead, Manifest, Part, staged_keys_by_sink
from kohort.region.region_key import RecordAuthor, RegionKey
from kohort.region.region_log import RegionLogWriter
from kohort.region.server import UnknownOutcomeError
from kohort.region.sinks import Keep, Sink, parquet_folder, staged_files
from kohort.region.sinks.dead_letters import split_refused_rows
from kohort.region.sinks.parquet_folder import ParquetFolder
from kohort.region.states import RegionState
from tests.region.world.batches import BatchMember
from tests.region.world.member import Member


def _instead(module: Any, name: str, other: Callable[..., Any]) -> Callable[[], AbstractContextManager[Any]]:
    return lambda: mock.patch.object(module, name, other)


def _in_table(table: dict[Any, Any], name: str, other: Callable[..., Any]) -> Callable[[], AbstractContextManager[Any]]:
    """Return a fault in the rows of a table whose handler has this name.

    Raises:
        AssertionError: no row has such a handler: it was renamed, and the fault would be none.
    """
    names = {row.do.__name__ for rows in table.values() for row in rows.values() if row.do is not None}
    assert name in names, f"the table has no handler {name}"

    def patched(rows: Any) -> Any:
        return {
            state: replace(row, do=other) if row.do is not None and row.do.__name__ == name else row
            for state, row in rows.items()
        }

    return lambda: mock.patch.dict(table, {event: patched(rows) for event, rows in table.items()})


def _serve_always(starts: StartOffsets) -> None:
    plane = starts.plane
    state, plane.state = plane.state, RegionState.RUNNING
    try:
        _SERVE(starts)
    finally:
        plane.state = state


_SERVE = StartOffsets.hand_out_partitions


def _commits_unpublished(machine: Checkpoints) -> None:
    plane = machine.plane
    before, plane.unpublished = plane.unpublished, {}
    try:
        _COMMIT(machine)
    finally:
        plane.unpublished = before


_COMMIT = Checkpoints.commit_if_all_contributed


def _states_the_same(writer: RegionLogWriter, author: RecordAuthor) -> Any:
    before = writer._stated
    said = _STATEMENT(writer, author)
    writer._stated = before
    return [(encode_fact_key(before), encode_fact_value(before))] if said and before is not None else said


_STATEMENT = RegionLogWriter._statement


def _keeps_what_was_read(machine: Any, order: ResetOrder) -> None:
    begins = dict(machine.begins)
    _RESET(machine, order)
    machine.begins.update(begins)


_RESET = MemberMachine.on_reset


def _begins_where_it_began(machine: Any, order: CheckpointCompleted) -> None:
    begins = dict(machine.begins)
    _COMPLETED(machine, order)
    machine.begins.update({part: begin for part, begin in begins.items() if part in machine.begins})


_COMPLETED = MemberMachine.on_completed


def _hears_all_terms(machine: MemberMachine, event: Any) -> Any:
    machine.term = -1
    return _STEP(machine, event)


_STEP = MemberMachine.step


def _drains_without_waiting(machine: Any, order: DrainOrder) -> None:
    machine.cut = order.cut
    machine.state = state.DRAINED
    machine.send(MemberDrained(order.cut))


def _sweeps_all(folder: ParquetFolder, keep: Keep) -> None:
    _SWEEP(folder, replace(keep, floor=10**6))


_SWEEP = ParquetFolder.sweep


def _stays_in_its_epoch(stager: RowStager, epoch: int) -> None:
    _BEGIN(stager, max(stager._epoch, 1) if epoch else epoch)


_BEGIN = RowStager.begin_epoch


def _runs_without_all(machine: Recovery) -> None:
    machine.plane.state = RegionState.RUNNING
    machine.plane.request(RegionRunning())


def _any_member_publishes(plane: ControlPlaneState, place: str) -> RegisteredMember | None:
    """Also one that writes elsewhere."""
    able = [member for _, member in sorted(plane.members.items()) if member.sink and member.lost_ms is None]
    return able[0] if able else _PUBLISHER(plane, place)


_PUBLISHER = ControlPlaneState.publishing_member


def _one_is_enough(plane: ControlPlaneState, place: str) -> None:
    _PAID(plane, place)
    for other in list(plane.unpublished):
        _PAID(plane, other)


_PAID = ControlPlaneState.record_published


def _waits_for_who_has_gone(machine: Checkpoints, place: str) -> None:
    plane = machine.plane
    plane.record_published(place)
    for value in [
        member for member in plane.members.values() if member.left and not plane.needs_publication(member.sink)
    ]:
        plane.end_and_unregister(value)
    machine.commit_if_all_contributed()


def _forgets_places(machine: Checkpoints) -> None:
    machine.plane.places = set()
    _COMMIT(machine)


def _ends_of_what_runs(member: BatchMember) -> dict[Part, int]:
    running = {part: end for part, (_, end) in (member.running or {}).items()}
    return {part: running.get(part, end) for part, end in _ENDS(member).items()}


_ENDS = BatchMember.ends


def _lets_go_whatever_was_read(machine: Any, sequence: int, retired: int, *, counts: bool) -> bool:
    machine.covered = dict(machine.held)
    return _COMPLETE(machine, sequence, retired, counts=counts)


_COMPLETE = MemberMachine.record_completed_checkpoint


def _knows_all_but_no_answer(producer: Any) -> None:
    """Take each error but a missing answer for an abort."""
    try:
        producer.commit_transaction()
    except RetriableError as error:
        raise UnknownOutcomeError(str(error)) from error


def _settles_by_looking(pen: RegionLogWriter) -> int:
    return pen._followed().last_complete_sequence


def _closes_with_the_table(consumer: RegionConsumer, timeout_s: float = 0) -> None:
    consumer._count_table()
    _ASK_TO_CLOSE(consumer, timeout_s)


_ASK_TO_CLOSE = RegionConsumer.request_close


def _puts_back_nothing(flow: RecordQueue, *, dirty: bool) -> None:
    del dirty
    flow.finish_table()


def _is_never_dirty(flow: RecordQueue, *, dirty: bool) -> None:
    del dirty
    _PUT_BACK(flow, dirty=False)


_PUT_BACK = RecordQueue.put_back_table


def _compares_one_way(*, ahead: bool) -> Callable[..., SinkDisagreement | None]:
    def compared(region: str, place: str, shows: int, bounds: CheckpointIdBounds) -> SinkDisagreement | None:
        return None if (shows > bounds.most) is ahead else compare_sink_with_topic(region, place, shows, bounds)

    return compared


def _marks_alone_count(folder: ParquetFolder) -> int:
    return folder._last_marked() if folder._is_owned() else 0


def _counts_whatever_it_contributed(machine: Any, sequence: int, retired: int, *, counts: bool) -> bool:
    del counts
    return _COMPLETE(machine, sequence, retired, counts=True)


def _waits_for_the_last_reset(machine: Recovery, wanted: ResetRequest) -> None:
    if machine._waits():
        machine.plane.pending = None
    _RESET_REGION(machine, wanted)


_RESET_REGION = Recovery.reset_region


def _numbers_resets_alike(machine: Recovery) -> Manifest:
    return replace(_TO_INITIAL(machine), sequence=machine.plane.sequence + 1)


_TO_INITIAL = Recovery._to_initial


def _decides_by_the_text(thread: Any, error: OffsetError) -> None:
    for partition in sorted(thread._reads):
        if str(partition) in str(error):
            thread._consumer.seek_to_beginning(partition)


def _decides_by_text_and_value(thread: Any, error: OffsetError) -> None:
    _DATA_LOST(thread, error)
    _decides_by_the_text(thread, error)


_DATA_LOST = EventThread._data_lost


def _forgets_bad_rows(sink: Sink, table: Any) -> tuple[Any, dict[int, str]]:
    return split_refused_rows(sink, table)[0], {}


def _begins_with_old_letters(stager: RowStager, epoch: int) -> None:
    letters = [] if stager._letters is None else list(stager._letters.staged)
    _BEGIN(stager, epoch)
    if stager._letters is not None:
        stager._letters.staged += letters


def _settles_rows_alone(stager: RowStager) -> None:
    assert stager._rows is not None
    stager._rows.drop_unfinished_table()


def _counts_rows_alone(stager: RowStager) -> int:
    assert stager._rows is not None
    return stager._rows.forget_contribution()


def _adds_letters_first(stager: RowStager, table: Any, **given: Any) -> None:
    """Letters are taken in before the sink was asked: they come again when it is away."""
    rows, stage_if_unit_full = stager._rows, staging._Units.stage_if_unit_full
    assert rows is not None

    def late(units: staging._Units) -> None:
        if units is not rows:
            stage_if_unit_full(units)

    with mock.patch.object(staging._Units, "stage_if_unit_full", late):
        _ADD(stager, table, **given)
    rows.stage_if_unit_full()


_ADD = RowStager.add


def _one_place_stands_for_both(machine: Checkpoints, event: Any) -> None:
    """Whoever has published in its sink is taken to have published its dead letters."""
    member = machine.plane.member_on_connection(event.connection)
    _PUBLISHED(machine, event)
    if member is not None and member.letters and event.report.place == member.sink:
        _PUBLISHED(machine, replace(event, report=replace(event.report, place=member.letters)))


_PUBLISHED = Checkpoints.on_published


@contextmanager
def _letters_are_nobodys() -> Iterator[None]:
    with ExitStack() as stack:
        for module in (checkpoints, region_topic):
            stack.enter_context(mock.patch.object(module, "staged_keys_by_sink", _keys_of_sinks))
        yield


def _keys_of_sinks(contributions: Any) -> Any:
    return staged_keys_by_sink(replace(given, letter_keys=()) for given in contributions)


def _loses_what_was_not_saved(state: LoadedKeyedState, sequence: int) -> None:
    try:
        _SAVE(state, sequence)
    finally:
        state._changed = {}


def _begins_with_any_copy(states: KeyedStates, part: Part, head: KeyedStateChainHead | None) -> None:
    kept = states._kept.get(part)
    _BEGIN(states, part, head)
    if kept is not None and part not in states._loaded:
        states._left.remove(kept)
        states._loaded[part] = kept


_SAVE, _REVERT, _BEGIN = LoadedKeyedState.save, LoadedKeyedState.revert_changes, KeyedStates.set_saved_state


@contextmanager
def _states_stay() -> Iterator[None]:
    """Working copies stay when their partitions go, and count when they come back."""

    def begins(states: KeyedStates, part: Part, head: KeyedStateChainHead | None) -> None:
        states._heads.setdefault(part, head)

    with mock.patch.object(KeyedStates, "forget_partitions"), mock.patch.object(KeyedStates, "set_saved_state", begins):
        yield


def _writes_without_syncs(*given: Any) -> None:
    with mock.patch.object(staged_files.Output, "sync"), mock.patch.object(staged_files, "sync_folder"):
        staged_files.write_file_atomically(*given)


@contextmanager
def _no_syncs() -> Iterator[None]:
    with ExitStack() as stack:
        for module in (parquet_folder, staged_files, staged_files):
            stack.enter_context(mock.patch.object(module, "sync_folder"))
        yield


_END_OF, _SWEEP_STATES = checkpoints._end_of, RegionStateStore.sweep

MUTANTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "starts are handed out at any time": _instead(StartOffsets, "hand_out_partitions", _serve_always),
    "the next is committed before the last is published": _instead(
        Checkpoints, "commit_if_all_contributed", _commits_unpublished
    ),
    "keys of one sink are published by another's member": _instead(
        ControlPlaneState, "publishing_member", _any_member_publishes
    ),
    "the next is committed while one of two sinks is not published": _instead(
        ControlPlaneState, "record_published", _one_is_enough
    ),
    "who leaves is not needed before the topic has a reset": _instead(
        ControlPlaneState, "needs_publication", lambda plane, place: place in plane.unpublished
    ),
    "nobody is asked to publish": _instead(ControlPlaneState, "order_publications", lambda plane: None),
    "who died is not missed": _instead(
        RegionMembers, "remove_dead_member", lambda machine, one, cause: machine.plane.unregister(one)
    ),
    "who is late is waited for": _instead(Checkpoints, "reset_if_overdue", lambda machine: None),
    "who does not come back is waited for": _instead(
        RegionMembers, "remove_disconnected_members", lambda machine: None
    ),
    "the region runs before all are back": _instead(Recovery, "end_reset_if_complete", _runs_without_all),
    "a reset leaves a member where it was": _in_table(MEMBER, "on_reset", _keeps_what_was_read),
    "a contribution begins where the last began": _in_table(MEMBER, "on_completed", _begins_where_it_began),
    "the end of the batch that runs is contributed": _instead(BatchMember, "ends", _ends_of_what_runs),
    "keys of a batch that is not contributed are given": _instead(
        BatchMember, "finished_keys", lambda member: (*(staged for _, staged in member.keys), *member.run_keys)
    ),
    "partitions are let go in the middle of a batch": _instead(BatchMember, "revoked", Member.revoked),
    "what is held is let go with a sequence that does not cover it": _instead(
        MemberMachine, "record_completed_checkpoint", _lets_go_whatever_was_read
    ),
    "a control plane that was overtaken is heard": _instead(MemberMachine, "step", _hears_all_terms),
    "a member is drained while it reads": _in_table(MEMBER, "on_drain", _drains_without_waiting),
    "partitions that were read are let go": _instead(
        MemberMachine, "request_reset", lambda one, cause, parts: one.release_partitions(parts)
    ),
    "what still counts is swept": _instead(ParquetFolder, "sweep", _sweeps_all),
    "who goes back stages in the epoch that it had": _instead(RowStager, "begin_epoch", _stays_in_its_epoch),
    "what is void stays": _instead(ParquetFolder, "empty", lambda folder, sequence, floor: folder._mark(sequence)),
    "what was given counts twice": _instead(RowStager, "forget_contribution", lambda stager: None),
    "a close counts the table in hand": _instead(RegionConsumer, "request_close", _closes_with_the_table),
    "a table that is left undone counts": _instead(RecordQueue, "put_back_table", _puts_back_nothing),
    "what was submitted of a table that is left undone stays": _instead(
        RowStager, "drop_unfinished_table", lambda stager: None
    ),
    "a state that has a table that is left undone is saved": _instead(RecordQueue, "put_back_table", _is_never_dirty),
    "a reset to the beginning that waits is forgotten for another": _instead(
        Recovery, "reset_region", _waits_for_the_last_reset
    ),
    "a bad row is dropped": _instead(staging, "split_refused_rows", _forgets_bad_rows),
    "dead letters are published once more after a reset": _instead(RowStager, "begin_epoch", _begins_with_old_letters),
    "dead letters of a sequence are given again": _instead(RowStager, "forget_contribution", _counts_rows_alone),
    "dead letters of a table that is left undone stay": _instead(
        RowStager, "drop_unfinished_table", _settles_rows_alone
    ),
    "dead letters are left when the sink is published": _in_table(TABLE, "on_published", _one_place_stands_for_both),
    "dead letters are nobody's to publish": _letters_are_nobodys,
    "names are not synced": _no_syncs,
    "who waits for its sink is late": _instead(Checkpoints, "all_wait_for_sinks", lambda machine, late: False),
    "an error that answers the end of a transaction is taken for an abort": _instead(
        RegionLogWriter, "_commit", staticmethod(_knows_all_but_no_answer)
    ),
    "what stands is settled by looking": _instead(RegionLogWriter, "resolve_pending_commit", _settles_by_looking),
    "an unknown outcome is taken for done": _instead(RegionLogWriter, "resolve_pending_commit", lambda pen: 10**6),
    "an unknown outcome is taken for an abort": _instead(RegionLogWriter, "resolve_pending_commit", lambda pen: 0),
    "a sink that is ahead of the topic is taken": _instead(
        membership, "compare_sink_with_topic", _compares_one_way(ahead=True)
    ),
    "a sink that lacks what it has shown is taken": _instead(
        membership, "compare_sink_with_topic", _compares_one_way(ahead=False)
    ),
    "a region numbers on from the topic behind a sink that is adopted": _instead(
        region_log,
        "records_after_adoption",
        lambda history, place, was, shows, now_ms: records_after_adoption(history, place, was, 0, now_ms),
    ),
    "what another place is to show is numbered anew with the sequence": _instead(
        LastCheckpoint, "id_in_sink", lambda last, known: last.sequence
    ),
    "two resets to the initial state on their way have one number": _instead(
        Recovery, "_to_initial", _numbers_resets_alike
    ),
    "what an error's text names is moved": _instead(EventThread, "_data_lost", _decides_by_the_text),
    "what an error's text names is moved too": _instead(EventThread, "_data_lost", _decides_by_text_and_value),
    "a record counts whoever has sealed it": _instead(RegionKey, "verifies_seal", lambda *_: True),
    "a record counts that no transaction holds": _instead(FactTable, "_not_proven", lambda *_, **__: ""),
    "a term counts whichever came before": _instead(FactTable, "_not_current", lambda *_: ""),
    "a producer that was replaced is heard": _instead(FactTable, "_not_of_the_author", lambda *_: ""),
    "another producer id is not stated": _instead(RegionLogWriter, "_statement", lambda writer, author: []),
    "a term is stated again as it was": _instead(RegionLogWriter, "_statement", _states_the_same),
    "the initial state needs no confirmation": _instead(Recovery, "_unconfirmed", lambda machine, confirms: ""),
    "the initial state is confirmed for another region": _instead(
        Recovery, "_unconfirmed", lambda machine, confirms: "" if confirms is not None else "no"
    ),
    "a partition moves without its state": _instead(
        checkpoints, "_end_of", lambda span: replace(_END_OF(span), state=None)
    ),
    "a state that moved or was reset is used again": _states_stay,
    "a copy of a state that has changes is kept at a reset": _instead(
        LoadedKeyedState, "revert_changes", lambda state: (_REVERT(state), True)[1]
    ),
    "a copy of a state is kept at a reset whatever was saved": _instead(
        KeyedStates, "set_saved_state", _begins_with_any_copy
    ),
    "changes of a state are forgotten when they could not be saved": _instead(
        LoadedKeyedState, "save", _loses_what_was_not_saved
    ),
    "files of a state that a manifest names are swept": _instead(
        RegionStateStore,
        "sweep",
        lambda place, order: _SWEEP_STATES(place, order._replace(head=order.head._replace(base=order.head.base + 2))),
    ),
    "files of a state are not synced": _instead(place, "write_file_atomically", _writes_without_syncs),
    "the outcome is taken for complete": _in_table(
        TABLE,
        "on_commit_ended",
        lambda machine, event: machine._complete(machine.plane.ongoing) if machine.plane.ongoing else None,
    ),
}

SEEN_BY_A_TEST: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "a contribution counts though the control plane says that it does not": _instead(
        MemberMachine, "record_completed_checkpoint", _counts_whatever_it_contributed
    ),
    "where the region has published is forgotten": _instead(Checkpoints, "commit_if_all_contributed", _forgets_places),
    "a reset waits for who has published and gone": _instead(
        Checkpoints, "_after_publication", _waits_for_who_has_gone
    ),
    "dead letters are taken in again when the sink was away": _instead(RowStager, "add", _adds_letters_first),
    "a sequence that is shown and not marked is not seen": _instead(ParquetFolder, "published", _marks_alone_count),
    "epochs come again behind a sink that is adopted": _instead(
        agreement, "_unused_epoch", lambda last, place, now_ms: last
    ),
}
"""Faults that need a history which the world hardly ever has; each has a test of its own."""
