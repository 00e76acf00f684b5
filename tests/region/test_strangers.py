"""Attacks by a reader or writer of the region's topic, or by a stranger on its port: none has an effect."""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from kohort import Consumer, Producer, TopicPartition
from kohort.errors import InvalidInputError, TimedOutError
from kohort.io.channel import authenticate_listener
from kohort.region import ParquetFolder, leader_election, messages, server
from kohort.region.message_codec import decode_order, encode_message
from kohort.region.record_codec import encode_fact_key, encode_fact_value
from kohort.region.records import EpochBegun, Fact, GroupClaim, Manifest, RegionCreated, RegionStopped, TermBegun
from kohort.region.region import Region
from kohort.region.region_key import RegionKey, region_key
from kohort.region.region_log import RegionLogView, read_regions
from kohort.region.region_topic import CLAIMS, TOPIC, owning_claim, region_partition, region_transactional_id
from tests.region.conftest import Collected, Worker, fill, make_topic
from tests.region.test_region import all_once
from tests.support.waiting import until

OTHER_KEY = "another key, of forty characters or more"


def stranger_facts(name: str, region_id: UUID, port: int) -> list[Fact]:
    """Return facts that would take the region over, stop it, and lose its rows."""
    return [
        TermBegun(name, 1_000, "127.0.0.1", port, b"", 0),
        EpochBegun(name, 10**6, 1_000, 10**6, 0, "a stranger", 0),
        Manifest(name, region_id, 10**6, 1_000, 0, 0, (), (), (), empties=True, places=("s",)),
        RegionStopped(name, "a stranger", "m", "nothing", 0),
        RegionCreated(name, UUID(int=66), 0),
    ]


def records_of(servers: str, name: str) -> list[Any]:
    """All that a reader of the topic sees of a region's partition."""
    where = TopicPartition(TOPIC, region_partition(name, 9))
    with Consumer(servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([where])
        end = consumer.end_offsets([where])[where]
        found = []
        while consumer.position(where) < end:
            found += consumer.poll(500)
    return found


def write_plainly(servers: str, name: str, facts: list[Fact], **settings: Any) -> None:
    with Producer(servers, **settings) as producer:
        for fact in facts:
            producer.send(
                TOPIC, encode_fact_value(fact), encode_fact_key(fact), partition=region_partition(name, 9)
            ).result()
            producer.send(
                TOPIC, None, f'["manifest","{name}",1]'.encode(), partition=region_partition(name, 9)
            ).result()


def write_in_a_transaction(
    servers: str, name: str, facts: list[Fact], transactional_id: str, *, copies: bool = True
) -> None:
    """Facts, every other one with the headers of a record that counts, copied from there."""
    seals = [record.headers for record in records_of(servers, name) if record.headers] if copies else []
    with Producer(servers, transactional_id=transactional_id) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for number, fact in enumerate(facts):
            headers = seals[number % len(seals)] if seals and number % 2 else ()
            producer.send(
                TOPIC,
                encode_fact_value(fact),
                encode_fact_key(fact),
                partition=region_partition(name, 9),
                headers=headers,
            )
        producer.commit_transaction()


WRITERS: dict[str, Callable[[str, str, list[Fact]], None]] = {
    "plain": lambda servers, name, facts: write_plainly(servers, name, facts, enable_idempotence=False),
    "idempotent": write_plainly,
    "transactional": lambda servers, name, facts: write_in_a_transaction(servers, name, facts, "a stranger's"),
    "copying": lambda servers, name, _: _copy_all(servers, name),
    "nested": lambda servers, name, _: _write_nested(servers, name),
}


def _write_nested(servers: str, name: str) -> None:
    """Keys and values nested deeper than Python's decoders go: each error of theirs is another than for bad syntax."""
    with Producer(servers, enable_idempotence=False) as producer:
        for where in (region_partition(name, 9), CLAIMS):
            producer.send(TOPIC, b"v", b"[" * 5_000, partition=where).result()
            producer.send(TOPIC, b"\x01" + b"\x91" * 5_000, f'["term","{name}"]'.encode(), partition=where).result()


def _copy_all(servers: str, name: str) -> None:
    """Every record of the region once more, whole, in a transaction of a stranger."""
    with Producer(servers, transactional_id="a stranger's") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for record in records_of(servers, name):
            where = region_partition(name, 9)
            producer.send(TOPIC, record.value, record.key, partition=where, headers=list(record.headers))
        producer.commit_transaction()


@pytest.mark.parametrize("kind", WRITERS)
def test_records_of_a_stranger_are_no_facts(
    servers: str, name: str, regions: list[Region], kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One plain Term took the region over: its members went to the stranger's port."""
    make_topic(servers, name)
    fill(servers, name, range(40))
    region = Region(name, servers, checkpoint_every="100ms")
    regions.append(region)
    sink = Collected()
    worker = Worker(region, "m1", sink, name)
    until(lambda: all_once(sink, range(40)), "all is published")
    before = region._home.read_saved_facts()
    assert before.birth is not None and before.term is not None
    with socket.create_server(("127.0.0.1", 0)) as port, caplog.at_level(logging.WARNING, "kohort.region"):
        port.settimeout(0.1)
        WRITERS[kind](servers, name, stranger_facts(name, before.birth.region_id, port.getsockname()[1]))
        saved = region._home.read_saved_facts()
        assert (saved.birth, saved.term, saved.epoch) == (before.birth, before.term, before.epoch)
        assert saved.stopped is None and saved.last_complete_sequence < 10**6
        assert any("ignored the record" in record.message for record in caplog.records)
        fill(servers, name, range(40, 80))
        until(lambda: all_once(sink, range(80)), "it goes on")
        other = Region(name, servers)
        regions.append(other)
        other.serve()
        fill(servers, name, range(80, 120))
        until(lambda: all_once(sink, range(120)), "and under another control plane")
        with pytest.raises(TimeoutError):
            port.accept()
    worker.close()
    assert worker.error is None


def test_topic_has_no_secret_and_its_reader_gets_no_connection(
    own_servers: str, name: str, regions: list[Region], tmp_path: Path
) -> None:
    """With what a reader of the topic knew, `AskReset(initial=True)` emptied the folder."""
    make_topic(own_servers, name)
    fill(own_servers, name, range(40))
    region = Region(name, own_servers, checkpoint_every="100ms")
    regions.append(region)
    Worker(region, "m1", ParquetFolder(tmp_path / "out"), name)
    until(lambda: region.complete() > 0, "a sequence is published")
    address = region._home.newest_address()
    assert address is not None
    secret = region_key()
    said = b"".join(
        bytes(part or b"")
        for record in records_of(own_servers, name)
        for part in (record.key, record.value, *(value for _, value in record.headers))
    )
    assert address.token not in said and secret.secret not in said and said
    guesses = [said[at : at + 32] for at in range(0, len(said) - 32, 97)][:40]
    guesses += [bytes(32), RegionKey(b"", "").term_secret(name, address.term)]
    for guess in guesses:
        with socket.create_connection((address.host, address.port), 60) as sock, pytest.raises(OSError):  # noqa: PT011
            authenticate_listener(sock, guess)


def test_request_that_deletes_rows_is_declined_unless_it_says_which(
    own_servers: str, name: str, regions: list[Region], tmp_path: Path
) -> None:
    """A member's connection, or a command that does not ask, could delete all that was published."""
    make_topic(own_servers, name)
    fill(own_servers, name, range(40))
    region = Region(name, own_servers, checkpoint_every="100ms")
    regions.append(region)
    Worker(region, "m1", ParquetFolder(tmp_path / "out"), name)
    until(lambda: any((tmp_path / "out").glob("sequence=*/*.parquet")), "rows are published")
    files = sorted((tmp_path / "out").glob("sequence=*/*.parquet"))
    place = ParquetFolder(tmp_path / "out").place
    for confirms in (
        None,
        messages.EmptySinksConfirmation(UUID(int=1), (place,)),
        messages.EmptySinksConfirmation(region.describe().region_id, ()),
    ):
        link = region.connect_to_control_plane()
        link.send(
            encode_message(messages.RegionResetRequest("a stranger", forced=True, initial=True, confirms=confirms))
        )
        answers = (decode_order(body) for body in link.receive_bodies(10))
        declined = next(answer for answer in answers if isinstance(answer, messages.ResetDeclined))
        assert "the request" in declined.why
        link.close()
    assert files and all(file.exists() for file in files)
    assert region.describe().resets.get("asked", 0) == 0
    region.reset(to_initial=True, empty_sinks=True)
    until(lambda: not any(file.exists() for file in files), "who says it gets it")


def test_silent_connections_leave_a_place_and_descriptors_for_members(
    own_servers: str, name: str, regions: list[Region]
) -> None:
    """Fifteen hundred of them took all descriptors of the application."""
    make_topic(own_servers, name)
    region = Region(name, own_servers, checkpoint_every="100ms")
    regions.append(region)
    region.serve()
    address = region._home.newest_address()
    assert address is not None
    before = len(os.listdir("/proc/self/fd"))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    strangers: list[socket.socket] = []
    try:
        for _ in range(1_500):
            with contextlib.suppress(OSError):
                strangers.append(socket.create_connection((address.host, address.port), 60))
        fill(own_servers, name, range(40))
        sink = Collected()
        Worker(region, "m1", sink, name)
        until(lambda: all_once(sink, range(40)), "a member works meanwhile")
        held = len(os.listdir("/proc/self/fd")) - before - len(strangers)
        assert held < 400, "strangers hold few descriptors of the listener"
    finally:
        for stranger in strangers:
            stranger.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def beyond_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """127.0.0.1 counts as an address that others reach: the tests' traffic stays on this machine."""
    monkeypatch.setattr(server, "is_loopback", lambda host: False)


@pytest.mark.usefixtures("beyond_loopback")
def test_control_plane_that_other_machines_reach_speaks_tls(own_servers: str, name: str, regions: list[Region]) -> None:
    make_topic(own_servers, name)
    fill(own_servers, name, range(40))
    region, other = (Region(name, own_servers, checkpoint_every="100ms", key=OTHER_KEY) for _ in range(2))
    regions += [region, other]
    region.serve()
    sink = Collected()
    Worker(other, "m1", sink, name)
    until(lambda: all_once(sink, range(40)), "all is published")
    address = region._home.newest_address()
    assert address is not None and len(address.pin) == 32
    with socket.create_connection((address.host, address.port), 60) as sock:
        sock.settimeout(0.5)
        with pytest.raises(TimeoutError):
            sock.recv(1)  # a listener without TLS begins with a nonce
    other.serve()
    fill(own_servers, name, range(40, 80))
    until(lambda: all_once(sink, range(80)), "another one shows another certificate")


def test_process_with_another_key_is_refused_and_says_which(
    servers: str, name: str, regions: list[Region], caplog: pytest.LogCaptureFixture
) -> None:
    make_topic(servers, name)
    first = Region(name, servers, checkpoint_every="100ms")
    regions.append(first)
    first.serve()
    second = Region(name, servers, key=OTHER_KEY)
    regions.append(second)
    for use in (second.describe, second.serve, lambda: second.consumer("m", group_id=name, topics=[name])):
        with pytest.raises(InvalidInputError, match="sealed with another key"):
            use()
    assert first.describe().term == 1, "nobody has taken over"
    home = RegionLogView(name, servers, {}, region_key(OTHER_KEY))
    first.close()
    regions.remove(first)
    try:
        assert home.reseal() >= 2
    finally:
        home.close()
    assert second.serve().term == 2
    with pytest.raises(InvalidInputError, match="sealed with another key"):
        RegionLogView(name, servers, {}).read_saved_facts()


def test_topic_of_an_earlier_release_is_refused_and_can_be_deleted(servers: str, name: str) -> None:
    """A region that began anew beside it would have read everything again."""
    home = RegionLogView(name, servers, {})
    try:
        home.partition_count()
        facts: list[Fact] = [RegionCreated(name, UUID(int=5), 0), TermBegun(name, 3, "127.0.0.1", 1, b"", 0)]
        write_in_a_transaction(servers, name, facts, region_transactional_id(name), copies=False)
        for use in (home.read_saved_facts, home.newest_address, lambda: home.take_over("127.0.0.1", 1)):
            with pytest.raises(InvalidInputError, match="earlier release.*kohort region delete"):
                use()
        saved, groups = read_regions(servers, {})[name]
        assert "has no seal" in saved.ignored_because and saved.birth is None and not groups
        home.delete_region_and_claims()
        assert home.read_saved_facts().birth is None
        _, known = home.take_over("127.0.0.1", 1)
        assert known.term == 1
    finally:
        home.close()


def test_plain_records_of_a_region_that_is_not_there_yet_keep_nobody_from_it(own_servers: str, name: str) -> None:
    home = RegionLogView(name, own_servers, {})
    try:
        home.partition_count()
        write_plainly(own_servers, name, stranger_facts(name, UUID(int=5), 1))
        log, known = home.take_over("127.0.0.1", 1)
        log.close()
        assert (known.term, known.sequence) == (1, 0)
    finally:
        home.close()


def test_claims_of_strangers_do_not_count_for_this_region(servers: str, name: str) -> None:
    mine, other = RegionLogView(name, servers, {}), RegionLogView(f"{name}.other", servers, {})
    keyed = RegionLogView(f"{name}.keyed", servers, {}, region_key(OTHER_KEY))
    try:
        mine.partition_count()
        plain = GroupClaim("g-" + name, f"{name}.stranger", "", 0)
        with Producer(servers) as producer:
            producer.send(TOPIC, encode_fact_value(plain), encode_fact_key(plain), partition=CLAIMS).result()
        mine.claim_group("g-" + name)
        with Producer(servers) as producer:
            producer.send(TOPIC, None, encode_fact_key(GroupClaim("g-" + name, name, "", 0)), partition=CLAIMS).result()
        for refused in (other, keyed):  # also one that can't check the seal
            with pytest.raises(InvalidInputError, match=f"belongs to region {name!r}"):
                refused.claim_group("g-" + name)
        mine.release_claims()
        keyed.claim_group("g-" + name)
        with pytest.raises(InvalidInputError, match="keyed"):
            other.claim_group("g-" + name)
    finally:
        for home in (mine, other, keyed):
            home.close()


@pytest.mark.parametrize("resealed", [False, True])
def test_delete_after_the_key_was_lost_frees_the_groups(own_servers: str, name: str, resealed: bool) -> None:
    lost = RegionLogView(name, own_servers, {})
    found = RegionLogView(name, own_servers, {}, region_key(OTHER_KEY))
    others = [RegionLogView(f"{name}.{key}", own_servers, {}, region_key(key)) for key in (None, OTHER_KEY)]
    try:
        log, _ = lost.take_over("127.0.0.1", 1)
        log.close()
        groups = [f"{name}.{number}" for number in range(2)]
        for group in groups:
            lost.claim_group(group)
        if resealed:
            found.reseal()
        found.delete_region_and_claims()
        assert name not in read_regions(own_servers, {}, region_key(OTHER_KEY))
        for other, group in zip(others, groups, strict=True):
            other.claim_group(group)
    finally:
        for home in (lost, found, *others):
            home.close()


def test_claims_count_after_the_key_was_replaced(own_servers: str, name: str) -> None:
    """A region that claimed the group later, and ended before it took that back, had the group for the new key."""
    before = RegionLogView(name, own_servers, {})
    after = RegionLogView(name, own_servers, {}, region_key(OTHER_KEY))
    other = RegionLogView(f"{name}.other", own_servers, {})
    try:
        log, _ = before.take_over("127.0.0.1", 1)
        log.close()
        before.claim_group("g-" + name)
        late = GroupClaim("g-" + name, f"{name}.other", "", 0)
        other._put_claims([(encode_fact_key(late), encode_fact_value(late))])
        after.reseal()
        after.check_group("g-" + name)
        after.claim_group("g-" + name)
        with pytest.raises(InvalidInputError, match=f"belongs to region {name!r}"):
            other.claim_group("g-" + name)
    finally:
        for home in (before, after, other):
            home.close()


def test_release_of_a_claim_counts_after_the_key_was_replaced(own_servers: str, name: str) -> None:
    """The region ended and freed the group, another took it, and the first name is used again with a new key."""
    before = RegionLogView(name, own_servers, {})
    after = RegionLogView(name, own_servers, {}, region_key(OTHER_KEY))
    other = RegionLogView(f"{name}.other", own_servers, {})
    try:
        before.claim_group("g-" + name)
        before.release_claims()
        other.claim_group("g-" + name)
        for take in (after.check_group, after.claim_group):
            with pytest.raises(InvalidInputError, match=f"belongs to region '{name}.other'"):
                take("g-" + name)
    finally:
        for home in (before, after, other):
            home.close()


def test_claim_of_the_regions_own_key_is_not_released_by_another(own_servers: str, name: str) -> None:
    mine = RegionLogView(name, own_servers, {})
    stranger = RegionLogView(name, own_servers, {}, region_key(OTHER_KEY))
    claim = GroupClaim("g-" + name, name, "a stranger", 0)
    try:
        mine.claim_group(claim.group)
        for value in (None, encode_fact_value(claim), None):
            stranger._put_claims([(encode_fact_key(claim), value)])
        owner = owning_claim(claim.group, mine.read_facts(CLAIMS))
        assert owner is not None and owner.region == name
        mine.release_claims()
        assert owning_claim(claim.group, mine.read_facts(CLAIMS)) is None
    finally:
        for home in (mine, stranger):
            home.close()


def test_member_says_nothing_of_a_port_that_another_program_has_now(
    own_servers: str, name: str, regions: list[Region], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader_election, "CONNECT_S", 0.2)
    region = Region(name, own_servers, serves=False)
    regions.append(region)
    home = RegionLogView(name, own_servers, {})
    with socket.create_server(("127.0.0.1", 0)) as port:
        log, _ = home.take_over("127.0.0.1", port.getsockname()[1])
        log.close()
        with pytest.raises(TimedOutError):
            region.describe()
        sock, _ = port.accept()
        sock.settimeout(60)
        assert sock.recv(100) == b"", "it waits for the listener's proof to begin"
        sock.close()
    home.close()
