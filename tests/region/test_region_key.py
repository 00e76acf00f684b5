"""The region's key: an operator's, or this user's on this machine."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kohort import Admin, Broker
from kohort.errors import InvalidInputError
from kohort.region.region import Region
from kohort.region.region_key import KEY_VARIABLE, RecordAuthor, RegionKey, existing_key, region_key
from kohort.region.region_log import read_regions
from kohort.region.region_topic import TOPIC

LONG = "x" * 32
AUTHOR = RecordAuthor(5, 2)


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "kohort" / "region.key"


def test_machine_has_one_key_that_is_the_users_alone(state: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        keys = set(pool.map(lambda _: region_key().secret, range(32)))
    assert len(keys) == 1 and keys == {region_key().secret}
    assert stat.S_IMODE(state.stat().st_mode) == 0o600 and stat.S_IMODE(state.parent.stat().st_mode) == 0o700
    assert [path.name for path in state.parent.iterdir()] == ["region.key"]
    assert region_key().secret.decode() not in f"{region_key()!r}"


def test_machines_key_survives_a_power_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The brokers have records that only this key verifies."""
    real = os.fsync
    synced: list[int] = []

    def fsync(fd: int) -> None:
        real(fd)
        synced.append(os.fstat(fd).st_ino)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "new" / "state"))
    region_key()
    folder = tmp_path / "new" / "state" / "kohort"
    [key] = folder.iterdir()
    assert synced == [path.stat().st_ino for path in (tmp_path, folder.parent.parent, folder.parent, key, folder)]


def test_operators_key_comes_first(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "e" * 40)
    assert region_key().secret == b"e" * 40 and region_key(LONG).secret == LONG.encode()
    assert not state.exists()


def test_key_that_can_be_guessed_is_refused(state: Path) -> None:
    with pytest.raises(InvalidInputError, match="31 characters, and needs 32"):
        region_key("x" * 31)
    with pytest.raises(InvalidInputError, match="31 characters"):
        Region("r", "127.0.0.1:9092", key="x" * 31)
    state.parent.mkdir()
    state.write_text("short")
    state.chmod(0o600)
    with pytest.raises(InvalidInputError, match="too short"):
        region_key()


def test_reading_creates_no_key_and_no_topic(state: Path) -> None:
    with Broker() as broker:
        servers = broker.bootstrap_servers
        assert read_regions(servers, {}) == {}
        with Region("r", servers, serves=False) as region:
            assert not region.is_served() and region.state_of("m1") is None
        with Admin(servers) as admin:
            assert TOPIC not in {info.name for info in admin.list_topics(internal=True)}
    assert existing_key() is None and not state.parent.exists()
    assert region_key() == existing_key()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_machines_key_that_others_may_read_or_write_is_refused(state: Path, mode: int) -> None:
    region_key()
    state.chmod(mode)
    with pytest.raises(InvalidInputError, match="chmod 600"):
        region_key()


def test_machines_key_that_is_a_link_is_refused(state: Path) -> None:
    region_key()
    state.rename(state.with_name("elsewhere"))
    state.symlink_to(state.with_name("elsewhere"))
    with pytest.raises(InvalidInputError, match="can't be kept"):
        region_key()


def test_machine_without_a_place_for_a_key_says_what_to_set(state: Path) -> None:
    state.parent.parent.joinpath("kohort").write_text("a file")
    with pytest.raises(InvalidInputError, match=KEY_VARIABLE):
        region_key()


def test_seal_is_of_one_record_one_producer_and_one_region() -> None:
    key, other = RegionKey(b"k" * 32, "a test"), RegionKey(b"o" * 32, "a test")
    seal = key.seal("r", AUTHOR, b"key", b"value")
    assert key.verifies_seal("r", AUTHOR, b"key", b"value", seal)
    for region, author, name, value in (
        ("q", AUTHOR, b"key", b"value"),
        ("r", RecordAuthor(6, 2), b"key", b"value"),
        ("r", RecordAuthor(5, 3), b"key", b"value"),
        ("r", AUTHOR, b"ke", b"yvalue"),
        ("r", AUTHOR, b"key", b"valve"),
        ("r", AUTHOR, b"key", None),
    ):
        assert not key.verifies_seal(region, author, name, value, seal)
    assert key.seal("r", AUTHOR, b"key", None) != key.seal("r", AUTHOR, b"key", b"")
    assert not other.verifies_seal("r", AUTHOR, b"key", b"value", seal)
    assert key.seal_names_this_key(seal) and not other.seal_names_this_key(seal) and key.name != other.name
    assert (
        len({key.term_secret("r", 1), key.term_secret("r", 2), key.term_secret("q", 1), other.term_secret("r", 1)}) == 4
    )


@pytest.mark.parametrize("host", ["0.0.0.0", "10.1.2.3", "worker-1", "::"])
def test_host_that_other_machines_reach_needs_the_operators_key(
    state: Path, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    with pytest.raises(InvalidInputError, match=KEY_VARIABLE):
        Region("r", "127.0.0.1:9092", host=host)
    Region("r", "127.0.0.1:9092", host=host, serves=False)
    Region("r", "127.0.0.1:9092", host=host, key=LONG)
    monkeypatch.setenv(KEY_VARIABLE, LONG)
    Region("r", "127.0.0.1:9092", host=host)
    for near in ("127.0.0.1", "127.5.5.5", "::1", "localhost"):
        monkeypatch.delenv(KEY_VARIABLE, raising=False)
        Region("r", "127.0.0.1:9092", host=near)
    assert os.environ.get(KEY_VARIABLE) is None
