"""An object store in memory, and the clients of processes, whose requests fail, are late or take their time."""

from __future__ import annotations

import bisect
import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, Final

from obstore.exceptions import AlreadyExistsError, BaseError, GenericError

from kohort.region.sinks.object_store import ObjectStore
from tests.region.volume import Calls, Died, Volume
from tests.region.world.clock import Clock, ViolatedError

RATES: Final = (0.0, 0.005, 0.02, 0.05)
"""The share of requests that fail; a world has one of these."""
LATE_MS: Final = 9_000
"""A request whose sender has given up takes effect at most so much later."""
SLOW_MS: Final = 1_500
PAGE: Final = 3
"""The number of names in a page of a slow list; between two pages anything may happen."""

_LAST: Final = "\U0010ffff"


class Bucket:
    """Objects by path. Each request is one step, as the stores promise; a conditional put has one winner.

    Attributes:
        objects: the content of each object.
        changed: called with the path of each object that was written or removed, and whether it is a new one.
    """

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.changed: Callable[[str, bool], None] = lambda path, is_new: None
        self._paths: list[str] = []

    def copied(self) -> Bucket:
        """Return a backup."""
        copy = Bucket()
        copy.objects, copy._paths = dict(self.objects), list(self._paths)
        return copy

    def put(self, path: str, data: bytes, mode: str = "overwrite") -> None:
        if mode == "create" and path in self.objects:
            raise AlreadyExistsError(f"Object at location {path} already exists")
        if is_new := path not in self.objects:
            bisect.insort(self._paths, path)
        self.objects[path] = bytes(data)
        self.changed(path, is_new)

    def get(self, path: str) -> bytes:
        if path not in self.objects:
            raise FileNotFoundError(f"Object at location {path} not found")
        return self.objects[path]

    def copy(self, path: str, to: str) -> None:
        self.put(to, self.get(path))

    def delete(self, paths: Sequence[str]) -> None:
        """Remove objects; it is no error if one is not there."""
        for path in paths:
            if self.objects.pop(path, None) is not None:
                del self._paths[bisect.bisect_left(self._paths, path)]
                self.changed(path, False)

    def names(self, prefix: str, after: str = "") -> list[str]:
        """Return the paths that begin with a prefix and come after another path, in order."""
        begin = bisect.bisect_right(self._paths, after) if after >= prefix else bisect.bisect_left(self._paths, prefix)
        return self._paths[begin : bisect.bisect_left(self._paths, prefix + _LAST)]


class StoreFaults:
    """The faults of requests, by chance of their own.

    Attributes:
        counts: how often each fault came.
        kinds: the faults of requests that write.
    """

    kinds: tuple[str, ...] = ("503", "lost answer", "late", "half")

    def __init__(self, clock: Clock, seed: int, rate: float | None = None, slow: float | None = None) -> None:
        self._clock, self._chance = clock, random.Random(f"{seed}: store")
        self._rate = self._chance.choice(RATES) if rate is None else rate
        self._slow = self._chance.choice((0.0, 0.0, 0.03)) if slow is None else slow
        self.counts: dict[str, int] = {}
        self._ended = False

    def is_bad(self) -> bool:
        """Return whether faults may still come."""
        return not self._ended

    def end(self) -> None:
        """From now on each request is answered at once."""
        self._ended = True
        self._rate = self._slow = 0.0

    def next_fault(self, *, writes: bool) -> str:
        """Return the fault of the next request; empty: none."""
        if not self._rate or self._chance.random() >= self._rate:
            return ""
        kind = self._chance.choice(self.kinds if writes else ("503",))
        self.counts[kind] = self.counts.get(kind, 0) + 1
        return kind

    def is_slow(self) -> bool:
        """Return whether the next request takes its time, while all else goes on."""
        return self._slow > 0 and self._chance.random() < self._slow and self._clock.may_hold()

    def pass_time(self) -> None:
        """Let everything else go on."""
        self.counts["slow"] = self.counts.get("slow", 0) + 1
        self._clock.run(self._clock.now_ms + self._chance.randint(10, SLOW_MS))

    def do_late(self, effect: Callable[[], object]) -> None:
        """Do what was asked when nobody waits for it any more; the store may refuse it by then."""

        def late() -> None:
            try:
                effect()
            except ViolatedError:
                raise
            except Exception as error:  # noqa: BLE001 - whatever it is, nobody hears of it
                self._clock.log(f"a late request is refused: {error!r}")

        self._clock.after_late(self._chance.randint(1, LATE_MS), late)

    def half(self, paths: Sequence[str]) -> list[str]:
        """Return some of these paths."""
        return [path for path in paths if self._chance.random() < 0.5]


class BusierFaults(StoreFaults):
    """More faults than those of a world, for the few requests that decide; they end with the world's."""

    kinds = ("503", "lost answer", "lost answer", "late")

    def __init__(self, faults: StoreFaults, name: str, rate: float = 0.1) -> None:
        super().__init__(faults._clock, 0, rate=rate, slow=rate / 2)
        self._chance, self._faults = random.Random(f"{name} {faults._chance.random()}"), faults
        self.counts = faults.counts

    def next_fault(self, *, writes: bool) -> str:
        """Return the fault of the next request; empty: none."""
        return super().next_fault(writes=writes) if self._faults.is_bad() else ""

    def is_slow(self) -> bool:
        """Return whether the next request takes its time."""
        return self._faults.is_bad() and super().is_slow()


class BucketClient:
    """A store as one process's library asks it. A process may die, fail or be held at each request (`calls`).

    Attributes:
        may_wait: whether time may pass now, while this process waits for an answer.
    """

    def __init__(self, bucket: Bucket, faults: StoreFaults | None) -> None:
        self._bucket, self._faults = bucket, faults
        self.calls = Calls(Volume())
        self.may_wait: Callable[[], bool] = lambda: False

    def put(self, path: str, data: bytes, *, mode: str = "overwrite", use_multipart: bool) -> None:
        assert not use_multipart, "no multipart upload is left behind"
        self._ask(f"put {mode}", path, lambda: self._bucket.put(path, data, mode), writes=True)

    def get(self, path: str) -> Any:
        data: bytes = self._ask("get", path, lambda: self._bucket.get(path))
        return SimpleNamespace(bytes=lambda: data, meta={"size": len(data)})

    def head(self, path: str) -> dict[str, int]:
        return {"size": len(self._ask("head", path, lambda: self._bucket.get(path)))}

    def copy(self, path: str, to: str) -> None:
        self._ask("copy", to, lambda: self._bucket.copy(path, to), writes=True)

    def delete(self, paths: str | Sequence[str]) -> None:
        gone = [paths] if isinstance(paths, str) else list(paths)
        self._ask("delete", gone[0], lambda: self._bucket.delete(gone), writes=True, paths=gone)

    def list(self, prefix: str, *, offset: str | None = None, chunk_size: int) -> Iterator[list[dict[str, str]]]:
        """Yield pages. A slow list has small ones: it shows each part of the store at another time."""
        self._ask("list", prefix, lambda: None)
        slow = self._faults is not None and self.may_wait() and self._faults.is_slow()
        after, size = offset or "", PAGE if slow else chunk_size
        while page := self._bucket.names(prefix, after)[:size]:
            yield [{"path": path} for path in page]
            after = page[-1]
            if slow:
                self._wait()

    def list_with_delimiter(self, prefix: str = "") -> dict[str, Any]:
        names: list[str] = self._ask("list", prefix, lambda: self._bucket.names(prefix))
        parts = {name[len(prefix) :].partition("/") for name in names}
        folders = sorted({f"{prefix}{first}" for first, slash, _ in parts if slash})
        return {
            "common_prefixes": folders,
            "objects": [{"path": prefix + first} for first, slash, _ in sorted(parts) if not slash],
        }

    def _ask(
        self, name: str, path: str, effect: Callable[[], Any], *, writes: bool = False, paths: Sequence[str] = ()
    ) -> Any:
        """Do what a request asks for, with the fault that it meets.

        Args:
            name: the request.
            path: the object that it is about.
            effect: what the store does.
            writes: whether that changes something.
            paths: the objects that it removes.
        """
        calls, faults = self.calls, self._faults
        number = calls._begin(name, path)
        fault = "" if faults is None else faults.next_fault(writes=writes)
        if faults is not None and fault == "late":
            faults.do_late(effect)
        if faults is not None and fault == "half":
            self._bucket.delete(faults.half(paths))
        if fault in ("503", "late", "half"):
            raise GenericError("Generic S3 error: status code: 503 Service Unavailable")
        if faults is not None and self.may_wait() and faults.is_slow():
            self._wait()
        done = effect()
        calls.after(number, name, path)
        if fault:
            raise GenericError("Generic S3 error: operation timed out")
        return done

    def _wait(self) -> None:
        assert self._faults is not None
        self._faults.pass_time()
        if self.calls.dead:
            raise Died


class WorldStore(ObjectStore):
    """The store that ships, over a client of a bucket in memory; one request after the other."""

    def __init__(self, url: str, client: BucketClient) -> None:
        super().__init__(url, {})
        self._client = client

    @property
    def _raw(self) -> Any:
        return self._client

    def _each(self, ask: Any, paths: Sequence[str]) -> list[Any]:
        return [answer for answer in map(ask, paths) if answer is not None]

    def count_race_winners(self, path: str) -> int:
        """Return how many of several puts created an object; here they come one after the other."""

        def wins(number: int) -> bool:
            with contextlib.suppress(BaseError):
                self._client.put(path, str(number).encode(), mode="create", use_multipart=False)
                return True
            return False

        return sum(map(wins, range(3)))
