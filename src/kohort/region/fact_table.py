"""The rule that decides which records of the region's topic are valid, for members, commands and control planes.

A record is valid only if all of this is true:

1. A transaction that was committed holds it.
2. Its seal is of the region's key, for this record under this producer id and epoch (`region_key`).
3. Its producer is the current one. After a `TermBegun` only its author's records count, in epochs that never fall;
   another author begins with a later `TermBegun`, or repeats the last one.

Everything else is a stranger's record. A claim of a group is the exception, because two regions must never share a
group. It counts whichever key sealed it, if a transaction holds it. Another region's key may be unknown here, and this
region's may have been replaced since (`reseal`). All regions thus agree on the first claim of a group. A release of
such a claim also counts whichever key sealed it. Only a claim that this region's own key has sealed stays until that
key releases it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kohort.errors import CorruptDataError
from kohort.io.log_throttle import IntervalThrottle
from kohort.region.record_codec import decode_fact, region_in_claim_key, region_in_record_key
from kohort.region.records import Fact, TermBegun
from kohort.region.region_key import SEAL, RecordAuthor, RegionKey

log = logging.getLogger("kohort.region")

STRANGE_KEYS_MAX = 10_000
"""Limit on the remembered keys of ignored records, which `kohort region delete` removes; of those that a
transaction holds, ten times as many."""
SAY_S = 60.0
"""Seconds between two log lines about records of one partition that are ignored for one reason."""
REASONS_MAX = 100
"""Limit on the reasons remembered; a reason may quote a record."""


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record of the region's metadata topic as it was read, with its producer and its seal.

    Attributes:
        author: the producer id and epoch of its batch.
        transactional: whether a committed transaction holds it.
        seal: the value of its seal header; empty: it has none.
    """

    offset: int
    author: RecordAuthor
    transactional: bool
    key: bytes | None
    value: bytes | None
    seal: bytes


def seal_headers(
    key: RegionKey, region: str, author: RecordAuthor, record_key: bytes, value: bytes | None
) -> list[tuple[str, bytes]]:
    """Return the record headers with a record's seal, an HMAC without which readers ignore the record."""
    return [(SEAL, key.seal(region, author, record_key, value))]


class FactTable:
    """The valid records of one partition of the region's metadata topic, decoded, the newest for each key.

    Attributes:
        facts: the decoded records by key, each with its offset.
        ignored: the number of records that were ignored.
    """

    def __init__(self, key: RegionKey, region: str) -> None:
        """Initialise an empty table for a reader of one region; an empty name: an operator's, who reads all regions."""
        self._key, self._region = key, region
        self.facts: dict[bytes, tuple[int, Fact]] = {}
        self.ignored = 0
        self._authors: dict[str, RecordAuthor] = {}
        self._terms: dict[str, tuple[int, int]] = {}
        self._strange: dict[bytes, tuple[str, str]] = {}  # by key: the region, and why if a transaction holds it
        self._other_keys: dict[str, dict[int, str]] = {}  # by region and producer id: why its records are ignored
        self._own_claims: set[bytes] = set()  # keys of this region's claims that its own key has sealed

    def facts_in_log_order(self) -> list[Fact]:
        """Return all decoded records, in the order of the log."""
        return [fact for _, fact in sorted(self.facts.values(), key=lambda entry: entry[0])]

    def record_keys_of_region(self, region: str) -> list[bytes]:
        """Return the keys of all records that name a region, ignored ones too; claims of groups are left out."""
        own = [key for key in self.facts if region_in_record_key(key) == region]
        return own + [key for key, (about, _) in self._strange.items() if about == region and key not in self.facts]

    def group_claim_keys(self, region: str) -> list[bytes]:
        """Return the keys of all claims of groups by a region, ignored ones too."""
        keys = dict.fromkeys([*self.facts, *self._strange])
        return [key for key in keys if region_in_claim_key(key) == region]

    @property
    def ignored_because(self) -> dict[str, str]:
        """The reasons why transactional records were ignored, by region; regions without such records are left out.

        For example, their seal is missing, does not fit, or is of another key.
        """
        return {region: why for region, why in self._strange.values() if why}

    def valid_producer_id(self, region: str) -> int:
        """Return the producer id whose records of a region are valid; -1: unknown."""
        author = self._authors.get(region)
        return -1 if author is None else author.producer_id

    def wrong_key_reason(self, region: str, producer_id: int) -> str:
        """Return why this producer's records are ignored, if it sealed them with another key; empty: it did not.

        The caller passes the region's own producer id, which only a process with the right to its transactional id can
        get.
        """
        return self._other_keys.get(region, {}).get(producer_id, "")

    def apply_record(self, record: StoredRecord) -> tuple[Fact | None, str]:
        """Apply the next record of the log; return it decoded, or the reason for which it is ignored.

        A valid tombstone returns neither.
        """
        if record.key is None:
            return self._ignore(record, "", "has no key")
        claims = region_in_claim_key(record.key)
        region = region_in_record_key(record.key) if claims is None else claims
        if region is None:
            return self._ignore(record, "", "is no record of a region")
        if why := self._not_proven(record, region, is_claim=claims is not None):
            return self._ignore(record, region, why)
        if record.value is None:
            self.facts.pop(record.key, None)
            self._strange.pop(record.key, None)
            return None, ""
        try:
            fact = decode_fact(record.key, record.value)
        except CorruptDataError as error:
            return self._ignore(record, region, f"can't be read: {error.message}")
        if claims is None and (why := self._not_current(record, region, fact)):
            return self._ignore(record, region, why)
        before = self.facts.get(record.key)
        where = before[0] if before is not None and claims is not None else record.offset
        self.facts[record.key] = where, fact
        self._strange.pop(record.key, None)
        return fact, ""

    def _not_proven(self, record: StoredRecord, region: str, *, is_claim: bool) -> str:
        """Return why a record is not accepted: no transaction, no valid seal, or an outdated producer; empty: it is."""
        if not record.transactional:
            return "is of no transaction"
        assert record.key is not None
        if record.seal and self._key.verifies_seal(region, record.author, record.key, record.value, record.seal):
            if not is_claim:
                return self._not_of_the_author(record, region)
            self._note_own_claim(record, region)
            return ""
        is_release_of_ours = record.value is None and record.key in self._own_claims
        of_other_key = record.seal and not self._key.seal_names_this_key(record.seal)
        if is_claim and of_other_key and not is_release_of_ours:
            return ""
        if not record.seal:
            why = "has no seal: a stranger wrote it, or an earlier release"
        elif self._key.seal_names_this_key(record.seal):
            why = "has a seal that does not fit: it was copied or changed"
        else:
            why = f"is sealed with another key than {self._key.name} of {self._key.origin}"
            self._see_other_key(record.author, region, why)
        return why

    def _note_own_claim(self, record: StoredRecord, region: str) -> None:
        """Remember a claim that this region's own key has sealed; forget one that it has released."""
        assert record.key is not None
        if record.value is None:
            self._own_claims.discard(record.key)
        elif region == self._region:
            self._own_claims.add(record.key)

    def _see_other_key(self, author: RecordAuthor, region: str, why: str) -> None:
        """Forget a region's records if its own producer has sealed later ones with another key (`reseal`)."""
        producers = self._other_keys.setdefault(region, {})
        if len(producers) < STRANGE_KEYS_MAX:
            producers[author.producer_id] = why
        current = self._authors.get(region)
        if current is not None and current.producer_id == author.producer_id and current.epoch <= author.epoch:
            gone = [key for key in self.facts if region_in_record_key(key) == region]
            self._strange.update((key, (region, why)) for key in gone)
            for key in gone:
                del self.facts[key]
            del self._authors[region], self._terms[region]

    def _not_of_the_author(self, record: StoredRecord, region: str) -> str:
        """Return why a validly sealed record is ignored: its producer or producer epoch is outdated; empty: neither."""
        author = self._authors.get(region)
        if author is None or (record.value is not None and record.author.producer_id != author.producer_id):
            return ""  # a fact of another producer may be a later `TermBegun`, which `_not_current` decides
        if record.author.producer_id != author.producer_id:
            return "is of a producer that was replaced"
        return "is of an epoch that is over" if record.author.epoch < author.epoch else ""

    def _not_current(self, record: StoredRecord, region: str, fact: Fact) -> str:
        author, last = self._authors.get(region), self._terms.get(region, (0, 0))
        if isinstance(fact, TermBegun):
            if (fact.term, fact.stated) <= last:
                return f"begins term {fact.term} after term {last[0]}"
            self._terms[region] = fact.term, fact.stated
        elif author is not None and author.producer_id != record.author.producer_id:
            return "is of a producer that was replaced"
        if author is not None or isinstance(fact, TermBegun):
            self._authors[region] = record.author
        self._other_keys.pop(region, None)  # only what another key has sealed later matters
        return ""

    def _ignore(self, record: StoredRecord, region: str, why: str) -> tuple[None, str]:
        self.ignored += 1
        if region and record.key is not None and record.value is not None:
            doubts = why if record.transactional and region_in_claim_key(record.key) is None else ""
            most = (10 if record.transactional else 1) * STRANGE_KEYS_MAX  # strangers' own can't hide others
            room = len(self._strange) < most
            if room if record.key not in self._strange else doubts:
                self._strange[record.key] = region, doubts
        return None, why


class UnverifiedFactTable(FactTable):
    """A table that accepts any record of a committed transaction, for `reseal` alone: an operator vouches for them."""

    def _not_proven(self, record: StoredRecord, region: str, *, is_claim: bool) -> str:
        del region, is_claim
        return "" if record.transactional else "is of no transaction"

    def _not_current(self, record: StoredRecord, region: str, fact: Fact) -> str:
        del record, region, fact
        return ""


class IgnoredRecordLog:
    """The throttled log of records that are ignored."""

    def __init__(self, partition: str) -> None:
        self._partition, self._throttle = partition, IntervalThrottle(SAY_S, time.monotonic, REASONS_MAX)

    def add(self, offset: int, author: RecordAuthor, why: str) -> None:
        """Count an ignored record, and log it unless one was logged for the same reason in the last 60 s."""
        count = self._throttle.count_event(why)
        if not count:
            return
        log.warning(
            "[partition %s] ignored the record at offset %s of producer %s, because it %s; %s such records since this "
            "was last logged",
            self._partition, offset, author.producer_id, why, count,
        )  # fmt: skip


def apply_valid_records(table: FactTable, records: Iterable[StoredRecord], ignored: IgnoredRecordLog) -> Iterator[Fact]:
    """Apply records to a table in the order of the log, and yield the valid ones, decoded."""
    for record in records:
        fact, why = table.apply_record(record)
        if why:
            ignored.add(record.offset, record.author, why)
        if fact is not None:
            yield fact
