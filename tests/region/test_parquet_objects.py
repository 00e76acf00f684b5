"""A folder of Parquet files in an object store: what stores do, and faults of the sink that must be found."""

from __future__ import annotations

import http.server
import os
import pickle
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from obstore.exceptions import AlreadyExistsError, GenericError, PermissionDeniedError

from kohort.errors import InvalidInputError, KafkaError, NotAuthorizedError, RetriableError
from kohort.region import ParquetFolder
from kohort.region.sinks import Keep
from kohort.region.sinks.availability import is_temporary_error
from kohort.region.sinks.by_name import sink_of
from kohort.region.sinks.object_store import ObjectStore, split_store_name
from kohort.region.sinks.parquet_objects import ParquetObjects, PublishedSequence, PublishedSequenceLog, _void_names
from kohort.region.sinks.sql_table import SqlTable
from kohort.region.staged import StagedKey
from tests.region import object_runs
from tests.region import place_runs as runs
from tests.region.places import REGION, SCHEMA, Calls, HeldObjects, LocalObjects, ObjectsPlace, Place, table

Patch = pytest.MonkeyPatch
Run = Callable[[Place, Path], None]
SECRET = "AKIA-very-secret"
OPTIONS = {"access_key_id": SECRET, "secret_access_key": SECRET, "region": "us-east-1"}


@pytest.fixture
def place(tmp_path: Path) -> ObjectsPlace:
    made = ObjectsPlace()
    made.at(tmp_path)
    return made


def key(unit: int) -> StagedKey:
    return StagedKey(REGION, 1, "größe/1", unit)


def test_server_that_begins_each_listing_at_the_first_name(
    place: ObjectsPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Azurite and fake-gcs-server ignore where a listing is to begin: members looked for the last sequence for ever."""
    whole = HeldObjects.list
    monkeypatch.setattr(HeldObjects, "list", lambda self, prefix, offset, **options: whole(self, prefix, **options))
    sink = place.sink()
    sink.check(SCHEMA)
    for number in range(1, 4):
        sink.stage(key(number), table([(number, "x")]))
        sink.publish(number, [key(number)])
    assert sink._store.list_names("_sequences") == [f"{number:020}.json" for number in (1, 2, 3)]  # type: ignore[attr-defined]
    assert list(sink._store.list_pages("_sequences", f"{2:020}.~")) == [[f"{3:020}.json"]]  # type: ignore[attr-defined]
    assert sink.published() == 3 and len(sink.published_files(after=1)) == 2  # type: ignore[attr-defined]


@pytest.mark.parametrize("run", object_runs.OBJECT_RUNS, ids=lambda run: run.__name__)
def test_run(run: Run, tmp_path: Path) -> None:
    run(ObjectsPlace(), tmp_path)


def _creates_over_what_is_there(patch: Patch) -> None:
    def create(self: ObjectStore, path: str, data: bytes) -> bytes:
        self.put_object(path, data)
        return data

    patch.setattr(ObjectStore, "create_object_if_absent", create)
    patch.setattr(ObjectStore, "check_conditional_puts", lambda self, path: None)


def _does_not_look_after_an_error(patch: Patch) -> None:
    def create(self: ObjectStore, path: str, data: bytes) -> bytes:
        with self._translated(path):
            self._raw.put(path, data, mode="create")
        return data

    patch.setattr(ObjectStore, "create_object_if_absent", create)
    patch.setattr(ObjectStore, "check_conditional_puts", lambda self, path: None)
    patch.setattr(PublishedSequenceLog, "is_published_or_emptied", lambda self, sequence: False)


def _takes_any_refusal_for_success(patch: Patch) -> None:
    whole = PublishedSequenceLog.publish_entry

    def publish(self: PublishedSequenceLog, entry: PublishedSequence) -> None:
        try:
            whole(self, entry)
        except RetriableError:
            return

    patch.setattr(PublishedSequenceLog, "publish_entry", publish)


def _sweeps_without_looking(patch: Patch) -> None:
    patch.setattr(PublishedSequenceLog, "read_sequence_entry", lambda self, sequence: None)


def _sweeps_by_an_older_listing(patch: Patch) -> None:
    def sweep(self: ParquetObjects, keep: Keep) -> None:
        self._owned()
        names = self._store.list_names("_staged")
        last = self._log.read_sequence_entry(self._log.last_done_sequence())
        shown = set() if last is None else last.published_key_texts()
        kept = {key.file_stem() for key in keep.keys} | shown
        void = _void_names(names, self._id, keep.floor)
        self._remove_staged_keys(name for name in void if name.rpartition(".")[0] not in kept)

    patch.setattr(ParquetObjects, "sweep", sweep)


def _leaves_what_the_dead_publisher_left(patch: Patch) -> None:
    patch.setattr(ParquetObjects, "_forget_before", lambda self, sequence: None)


def _empties_without_saying_so(patch: Patch) -> None:
    patch.setattr(PublishedSequenceLog, "mark_emptied", lambda self, sequence: None)


def _names_no_rows_before_they_are_there(patch: Patch) -> None:
    whole = ObjectStore.put_object

    def put(self: ObjectStore, path: str, data: bytes) -> None:
        if not path.endswith(".rows"):
            whole(self, path, data)

    patch.setattr(ObjectStore, "put_object", put)


def _removes_before_it_is_published(patch: Patch) -> None:
    whole = PublishedSequenceLog.publish_entry

    def publish(self: PublishedSequenceLog, entry: PublishedSequence) -> None:
        self._store.remove_objects([f"_staged/{name}.none" for name in entry.empty])
        whole(self, entry)

    patch.setattr(PublishedSequenceLog, "publish_entry", publish)


MUTANTS: tuple[tuple[Callable[[Patch], None], Run], ...] = (
    (_creates_over_what_is_there, object_runs.published_rows_stay),
    (_creates_over_what_is_there, object_runs.two_regions),
    (_does_not_look_after_an_error, object_runs.lost_answers),
    (_takes_any_refusal_for_success, object_runs.refused_requests),
    (_sweeps_without_looking, object_runs.swept_after_death),
    (_sweeps_by_an_older_listing, object_runs.held_sweeps),
    (_leaves_what_the_dead_publisher_left, object_runs.swept_after_death),
    (_empties_without_saying_so, runs.emptied_under_a_publisher),
    (_names_no_rows_before_they_are_there, object_runs.staging_killed_and_swept),
    (_removes_before_it_is_published, runs.killed_publishers),
)


@pytest.mark.parametrize(("mutant", "run"), MUTANTS, ids=lambda each: each.__name__)
def test_the_run_kills_the_mutant(
    mutant: Callable[[Patch], None], run: Run, tmp_path: Path, monkeypatch: Patch
) -> None:
    mutant(monkeypatch)
    with pytest.raises((AssertionError, KafkaError)):
        run(ObjectsPlace(), tmp_path)


class _Careless(HeldObjects):
    """A store that ignores the condition of a put."""

    def put(self, path: str, data: bytes, **options: Any) -> Any:
        return super().put(path, data)


class _Racy(LocalObjects):
    """A store that looks and then writes: it refuses a calm second put, and accepts those at once."""

    def _open_store(self) -> Any:
        return HeldObjects(self.root, getattr(self, "calls", Calls()))

    def count_race_winners(self, path: str) -> int:
        gate = threading.Barrier(16)

        class Store:
            def put(self, path: str, data: bytes, **options: Any) -> None:
                there = (root / path).exists()
                gate.wait(30)
                if there:
                    raise AlreadyExistsError(path)
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_bytes(data)

        root, raw = Path(self.root), self._raw
        self._opened = (os.getpid(), Store())
        try:
            return ObjectStore.count_race_winners(self, path)
        finally:
            self._opened = (os.getpid(), raw)


def _sink_of(place: ObjectsPlace, store: ObjectStore) -> ParquetObjects:
    made = place.sink()
    assert isinstance(made, ParquetObjects)
    made._store = store
    made._log = PublishedSequenceLog(store)
    return made


def test_store_without_conditional_puts_is_refused(place: ObjectsPlace) -> None:
    store = LocalObjects(place.path, Calls())
    store._opened = (os.getpid(), _Careless(place.path, Calls()))
    for _ in range(2):
        with pytest.raises(InvalidInputError, match="no conditional puts"):
            _sink_of(place, store).check(SCHEMA)


def test_store_that_several_racers_win_is_refused_again_and_again(place: ObjectsPlace) -> None:
    for _ in range(2):
        with pytest.raises(InvalidInputError, match="of 16 puts at once 16 were accepted"):
            _sink_of(place, _Racy(place.path, Calls())).check(SCHEMA)


def test_racy_store_is_refused_although_a_refused_check_could_not_clean_up(place: ObjectsPlace) -> None:
    calls = Calls()

    def fail(number: int, call: str) -> None:
        if call.startswith("unlink"):
            raise GenericError("status code: 503 Slow Down")

    for at in (fail, lambda number, call: None):
        calls.at = at
        for _ in range(2):
            with pytest.raises((InvalidInputError, RetriableError)):
                _sink_of(place, _Racy(place.path, calls)).check(SCHEMA)


@pytest.mark.parametrize(
    ("refused", "error"), [("503 Slow Down", RetriableError), ("403 Forbidden", NotAuthorizedError)]
)
def test_race_that_nobody_wins_proves_nothing(place: ObjectsPlace, refused: str, error: type[Exception]) -> None:
    class Silent(LocalObjects):
        def count_race_winners(self, path: str) -> int:
            return 0

    calls = Calls()

    def fail(number: int, call: str) -> None:
        if call.startswith("put _region/conditional-put"):
            raise (PermissionDeniedError if "403" in refused else GenericError)(f"status code: {refused}")

    with pytest.raises(RetriableError, match="of 16 puts at once none"):
        _sink_of(place, Silent(place.path, Calls())).check(SCHEMA)
    calls.at = fail
    with pytest.raises(error):
        _sink_of(place, Silent(place.path, calls)).check(SCHEMA)


def test_published_number_is_found_among_many(place: ObjectsPlace) -> None:
    """With holes, and little is listed of what is old."""
    sink = place.sink()
    sink.check(SCHEMA)
    folder = Path(place.path) / "_sequences"
    folder.mkdir()
    for number in (1, 2, 1023, 1024, 1025, 1026, 2050, 7000, 7001, 400_000):
        (folder / f"{number:020}.json").write_bytes(b"{}")
        assert sink.published() == number == place.sink().published()
    (folder / f"{400_003:020}.emptied").write_bytes(b"{}")
    assert sink.published() == 400_003
    shutil.rmtree(folder)
    assert sink.published() == 0, "the folder was removed"


def test_files_of_a_store_and_of_a_folder_are_listed_alike(place: ObjectsPlace, tmp_path: Path) -> None:
    stored, local = place.sink(), ParquetFolder(tmp_path / "local").bind("region", REGION)
    assert isinstance(stored, ParquetFolder)
    for sink in (stored, local):
        assert sink.published_files() == []
        sink.check(SCHEMA)
        for number in range(4):
            sink.stage(key(number), table([(number, "a")]))
        sink.publish(1, [key(0), key(1)])
        sink.publish(2, [])
        sink.publish(3, [key(2)])
        assert [file.sequence for file in sink.published_files()] == [1, 1, 3]
        assert [file.sequence for file in sink.published_files(after=1)] == [3]
        assert [Path(file.path).name for file in sink.published_files()] == [
            f"{key(number).file_stem()}.parquet" for number in range(3)
        ]
        sink.empty(4, 2)
        assert sink.published_files() == []
    assert stored.path == "s3://bucket/out"


def test_place_names_the_server_and_no_credential(monkeypatch: Patch) -> None:
    for name in [name for name in os.environ if name.startswith(("AWS_", "AZURE_"))]:
        monkeypatch.delenv(name)
    amazon = ParquetFolder("S3a://bucket/out/", storage_options=OPTIONS)
    assert (amazon.place, amazon.path) == ("parquet:s3://bucket/out", "s3://bucket/out")
    own = ParquetFolder("s3://bucket/out", storage_options={**OPTIONS, "AWS_ENDPOINT_URL": "https://Store:9000/"})
    assert own.place == "parquet:s3://bucket/out[https://store:9000]" == sink_of(own.place).place
    azure = ParquetFolder("az://box/out", storage_options={"account_name": "acme", "account_key": SECRET})
    assert azure.place == "parquet:az://box/out[account acme]" == sink_of(azure.place).place
    assert ParquetFolder("gs://bucket/out").place == "parquet:gs://bucket/out"
    with pytest.raises(InvalidInputError, match="allow_http"):
        ParquetFolder("s3://bucket/out", storage_options={"endpoint": "http://store:9000"})
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://store:9000")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    from_environment = ParquetFolder("s3://bucket/out", storage_options=OPTIONS)
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    assert from_environment.bind("r", REGION).place == "parquet:s3://bucket/out[http://store:9000]"
    assert SECRET not in repr([amazon, own, azure, from_environment]) + own.place + azure.place


@pytest.mark.parametrize(
    ("server", "allowed"), [("https://store:9000", False), ("http://store:9000", True), ("HTTPS://store", False)]
)
def test_name_of_a_place_allows_plain_http_only_for_a_server_of_it(server: str, allowed: bool) -> None:
    for url in ("s3://bucket/out", "gs://bucket/out"):
        assert ObjectStore(*split_store_name(f"{url}[{server}]"))._allows_http() == allowed


def test_store_that_does_not_answer_is_waited_for(monkeypatch: Patch) -> None:
    unreachable = {**OPTIONS, "endpoint": "http://127.0.0.1:1", "allow_http": "true"}
    sink = pickle.loads(pickle.dumps(ParquetFolder("s3://bucket/out", storage_options=unreachable).bind("r", REGION)))
    for call in (sink.published, lambda: sink.check(SCHEMA), sink.published_files):
        with pytest.raises(RetriableError, match=r"store of s3://bucket/out/.* does not answer") as away:
            call()
        assert is_temporary_error(away.value) and SECRET not in str(away.value)
        assert away.value.__suppress_context__ and away.value.__cause__ is None, "their own text may have more"


def test_error_of_a_store_holds_no_signature() -> None:
    store = ObjectStore("s3://bucket/out", OPTIONS)
    with pytest.raises(RetriableError) as away, store._translated("x"):
        raise GenericError(f"error for url (https://store/x?sv=1&sig=abc) with {SECRET}\nDebug source: {SECRET}")
    assert "sig" not in str(away.value) and SECRET not in str(away.value)


class _Echo(http.server.BaseHTTPRequestHandler):
    """A store that refuses every request, as S3 does: with the request's headers in its answer, on one line."""

    status = 403

    def answer(self) -> None:
        """Answer a request of any method."""
        self.rfile.read(int(self.headers.get("content-length") or 0))
        body = f"<?xml version='1.0'?><Error><Code>SignatureDoesNotMatch</Code><X>{self.headers}</X></Error>"
        data = body.replace("\n", " ").encode()
        self.send_response(self.status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Write no log."""


for _method in ("GET", "HEAD", "PUT", "POST", "DELETE"):
    setattr(_Echo, f"do_{_method}", _Echo.answer)


@pytest.mark.parametrize("status", [400, 401, 403, 500, 501])
def test_error_holds_no_token_that_the_answer_of_a_store_repeats(status: int, monkeypatch: Patch) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token-of-the-session")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, SECRET)
    monkeypatch.setattr(_Echo, "status", status)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Echo)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        options = {"endpoint": f"http://127.0.0.1:{server.server_port}", "allow_http": "true", "region": "r"}
        store = ObjectStore("s3://bucket/out", options)
        calls: list[Callable[[], object]] = [
            lambda: store.put_object("x", b"1"),
            lambda: store.create_object_if_absent("x", b"1"),
            lambda: store.read_object("x"),
            lambda: store.object_sizes(["x"]),
            lambda: store.list_names("f"),
            lambda: store.remove_objects(["x", "y"]),
        ]
        for number, call in enumerate(calls):
            with pytest.raises(KafkaError, match=f"status code: {status}") as refused:
                call()
            said = str(refused.value)
            assert "token-of-the-session" not in said and SECRET not in said and "Signature=" not in said
            assert "SignatureDoesNotMatch" in said or number == 3, "answers to HEAD have no text"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    "url",
    [
        "az://c/out?sv=1&sig=SASSECRET",
        "az://c/out#sig=SASSECRET",
        "https://user:SASSECRET@host/c/out?sig=SASSECRET",
        "https://user:SAS/SASSECRET@host/c",
        "s3://bucket/out\n?sig=SASSECRET",
        "user:SASSECRET@host/c",
        "hdfs://user:SASSECRET@node/out?token=SASSECRET",
    ],
)
def test_error_shows_no_secret_of_a_url_that_is_refused(url: str) -> None:
    for call in (lambda: ObjectStore(url, {}), lambda: sink_of(url), lambda: SqlTable(url, "t")):
        with pytest.raises(InvalidInputError) as refused:
            call()
        assert "SASSECRET" not in str(refused.value)


def test_error_holds_no_secret_of_the_environment(monkeypatch: Patch) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token-of-the-session")
    monkeypatch.setenv("AZURE_STORAGE_SAS_KEY", "key-of-the-environment")
    store = ObjectStore("s3://bucket/out", OPTIONS)
    with pytest.raises(RetriableError) as away, store._translated("x"):
        raise GenericError("proxy http://user:pass-word@proxy/: token-of-the-session, key-of-the-environment")
    for secret in ("pass-word", "token-of", "key-of"):
        assert secret not in str(away.value)


@pytest.mark.parametrize(
    ("url", "options", "why"),
    [
        ("s3://key:secret@bucket/out", {}, "no credentials"),
        ("s3://bucket/a//b", {}, "empty part"),
        ("s3://bucket/../b", {}, "empty part"),
        ("s3://bucket/a*", {}, "pattern"),
        ("s3://bucket/a?versionId=1", {}, "pattern"),
        ("s3://bucket/out", {"endpoint": "https://key:secret@store"}, "holds credentials"),
        ("s3://bucket/out", {"endpoint": "key:secret@store:9000"}, "holds credentials"),
        ("s3://bucket/out", {"endpoint": "//key:secret@store:9000"}, "holds credentials"),
        ("s3://bucket/out", {"endpoint": "https:/key:secret@store"}, "holds credentials"),
        ("gs://bucket/out", {"base_url": "key:secret@store"}, "holds credentials"),
        ("az://box/out", {"endpoint": "key:secret@store"}, "holds credentials"),
        ("s3://bucket/out", {"nonsense": "1"}, "can't be opened"),
        ("hdfs://node/out", {}, "hard links"),
        ("/data/out", {"region": "x"}, "is a folder"),
    ],
)
def test_what_is_no_place_is_refused(url: str, options: dict[str, str], why: str) -> None:
    with pytest.raises(InvalidInputError, match=why):
        ParquetFolder(url, storage_options=options).bind("r", REGION).published()


def test_place_under_another_name_is_refused_until_it_is_adopted(place: ObjectsPlace) -> None:
    known = place.sink()
    known.check(SCHEMA)
    known.stage(key(1), table([(1, "a")]))
    known.publish(1, [key(1)])
    other = ParquetFolder("s3://mirror/out")
    assert isinstance(other, ParquetObjects)
    other._store = LocalObjects(place.path, Calls(), other.path)
    other._log = PublishedSequenceLog(other._store)
    moved = other.bind("region", REGION)
    for call in (moved.published, lambda: moved.check(SCHEMA)):
        with pytest.raises(InvalidInputError, match="knows as parquet:s3://bucket/out"):
            call()
    assert moved.known() == (known.place, 1)
    assert moved.adopt() == known.place and moved.published() == 1 and moved.adopt() == moved.place
    with pytest.raises(InvalidInputError, match="belongs to region"):
        other.bind("other", object_runs.OTHER).adopt()
