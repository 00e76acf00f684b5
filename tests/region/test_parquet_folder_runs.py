"""Every step at which a process can die, and mutants that the runs must find."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from kohort.errors import KafkaError
from kohort.region import files
from kohort.region.files import Output, remove_folder
from kohort.region.sinks import Keep, owner_marker, parquet_folder, staged_files
from kohort.region.sinks.parquet_folder import ParquetFolder
from tests.region import folder_runs as runs

RUNS: tuple[Callable[[], None], ...] = (
    runs.killed_publishers,
    runs.power_lost,
    runs.power_lost_after_a_word_was_given,
    runs.an_empty_sequence_and_a_power_loss,
    runs.killed_while_staging,
    runs.failing_disk,
    runs.held_publishers,
    runs.sweeps_at_each_moment,
    runs.swept_keys_of_older_epochs,
    runs.given_up_folders,
    runs.emptied,
    runs.emptied_under_a_publisher,
    runs.a_publisher_while_it_is_emptied,
    runs.two_regions,
    runs.killed_checks,
)


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.__name__)
def test_run(run: Callable[[], None]) -> None:
    run()


def _no_folder_syncs(patch: pytest.MonkeyPatch) -> None:
    for module in (parquet_folder, staged_files, staged_files):
        patch.setattr(module, "sync_folder", lambda files, path: None)


def _no_file_syncs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Output, "sync", lambda output: None)


def _marked_before_the_folder_is_durable(patch: pytest.MonkeyPatch) -> None:
    def publish(self: ParquetFolder, sequence: int, keys: Any) -> None:
        names = sorted(key.file_stem() for key in keys)
        if not self._is_marked(sequence) and not self._has_folder(sequence):
            self._bring(sequence, names)
        self._mark(sequence)
        for name in names:
            for ending in (parquet_folder._ROWS, parquet_folder._EMPTY):
                parquet_folder.remove_file(self._files, f"{self.path}/_staging/{name}{ending}")

    patch.setattr(ParquetFolder, "publish", publish)


def _renamed_before_all_links(patch: pytest.MonkeyPatch) -> None:
    def rename(self: ParquetFolder, sequence: int, full: list[str]) -> None:
        self._files.mkdir(self._folder(sequence))
        says = f"{self._folder(sequence)}/{self._owner_file_name(sequence)}"
        self._files.close(self._files.open(says, os.O_WRONLY | os.O_CREAT, 0o666))
        for name in full:
            staged_files.link_file(
                self._files, f"{self.path}/_staging/{name}.staged", f"{self._folder(sequence)}/{name}.parquet"
            )

    patch.setattr(ParquetFolder, "_rename", rename)


def _emptied_in_place(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ParquetFolder, "_discard", lambda self, temporary: remove_folder(self._files, temporary))


def _sweeps_what_is_old(patch: pytest.MonkeyPatch) -> None:
    whole = ParquetFolder.sweep
    patch.setattr(ParquetFolder, "sweep", lambda self, keep: whole(self, Keep(keep.floor)))


def _sweeps_the_present_epoch(patch: pytest.MonkeyPatch) -> None:
    whole = ParquetFolder.sweep
    patch.setattr(ParquetFolder, "sweep", lambda self, keep: whole(self, Keep(keep.floor + 1, keep.keys)))


def _a_late_one_takes_the_mark_back(patch: pytest.MonkeyPatch) -> None:
    def mark(self: ParquetFolder, sequence: int) -> None:
        folder = f"{self.path}/_region"
        for old in staged_files.published_mark_numbers(self._files, folder):
            files.remove_file(self._files, f"{folder}/published-{old}")
        self._files.close(self._files.open(f"{folder}/published-{sequence}", 0o101, 0o666))
        files.sync_folder(self._files, folder)

    patch.setattr(ParquetFolder, "_mark", mark)


def _the_first_owner_is_written_over(patch: pytest.MonkeyPatch) -> None:
    def first(self: ParquetFolder, schema: Any) -> None:
        files.make_folder(self._files, f"{self.path}/_region")
        owner = owner_marker.OwnerMarker(1, self._region, self._bound(), owner_marker.encode_schema(schema))
        temporary = f"{self.path}/_region/{self._bound().hex}.part"
        files.write_file(self._files, temporary, owner_marker.msgspec.json.encode(owner))
        self._files.rename(temporary, f"{self.path}/_region/region.json")

    patch.setattr(ParquetFolder, "_first", first)


def _what_is_shown_goes_first(patch: pytest.MonkeyPatch) -> None:
    def empty(self: ParquetFolder, sequence: int, floor: int) -> None:
        for number in range(1, sequence + 1):
            if self._has_folder(number):
                self._discard(self._folder(number))
        for name in self._names():
            if self._is_void(name, floor):
                files.remove_file(self._files, f"{self.path}/_staging/{name}")
        self._mark(sequence)

    patch.setattr(ParquetFolder, "empty", empty)


def _removes_before_it_is_durable(patch: pytest.MonkeyPatch) -> None:
    def hide_folder(self: ParquetFolder, folder: str) -> str:
        gone = f"{self.path}/_staging/gone-{uuid.uuid4().hex}"
        self._files.rename(folder, gone)
        remove_folder(self._files, gone)
        return gone

    patch.setattr(ParquetFolder, "_hide_folder", hide_folder)


def _leaves_what_is_staged(patch: pytest.MonkeyPatch) -> None:
    whole = ParquetFolder.empty
    patch.setattr(ParquetFolder, "empty", lambda self, sequence, floor: whole(self, sequence, 0))


def _leaves_attempts(patch: pytest.MonkeyPatch) -> None:
    whole = ParquetFolder._tidy
    patch.setattr(ParquetFolder, "_tidy", lambda self, names, published: whole(self, names, 0))


MUTANTS: tuple[tuple[Callable[[pytest.MonkeyPatch], None], Callable[[], None]], ...] = (
    (_no_folder_syncs, runs.power_lost_after_a_word_was_given),
    (_no_file_syncs, runs.power_lost),
    (_marked_before_the_folder_is_durable, runs.power_lost),
    (_renamed_before_all_links, runs.killed_publishers),
    (_emptied_in_place, runs.given_up_folders),
    (_sweeps_what_is_old, runs.swept_keys_of_older_epochs),
    (_sweeps_the_present_epoch, runs.sweeps_at_each_moment),
    (_a_late_one_takes_the_mark_back, runs.held_publishers),
    (_no_folder_syncs, runs.emptied),
    (_removes_before_it_is_durable, runs.emptied),
    (_what_is_shown_goes_first, runs.a_publisher_while_it_is_emptied),
    (_leaves_what_is_staged, runs.a_publisher_while_it_is_emptied),
    (_leaves_attempts, runs.emptied_under_a_publisher),
    (_the_first_owner_is_written_over, runs.two_regions),
)


@pytest.mark.parametrize(("mutant", "run"), MUTANTS, ids=lambda each: each.__name__)
def test_the_run_kills_the_mutant(
    mutant: Callable[[pytest.MonkeyPatch], None], run: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    with pytest.raises((AssertionError, KafkaError)):
        run()
