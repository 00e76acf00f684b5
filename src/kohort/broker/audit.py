"""The audit log: logins, refusals, and changes of topics, groups, ACLs, users, quotas and configurations.

Each line of the file is a JSON object. Recording never blocks: a bounded queue leads to a thread that writes. A full
queue or disk loses entries, and a line with `"event": "lost"` counts them. Repeated refusals and logins are one line in
ten seconds, with their number, and so are those of one address beyond `REPEATS_OF_HOST_MAX`. A client that is refused
takes at most half of the queue. So it neither pushes older entries out of the file soon, nor new changes out of the
queue.

| field | content |
|---|---|
| `time` | when, in UTC |
| `event` | `login`, `refusal`, `change` or `lost` |
| `principal`, `host`, `client_id` | the client |
| `api` | the API that the client called; null of a login by certificate |
| `operation`, `resource_type`, `resource` | what was refused or changed |
| `result` | `allowed` or `refused`; of a login `succeeded` or `failed` |
| `details` | of a change: names of properties, or the ACL; never a value of a property, a password or a salt |
| `count` | how often the entry was repeated or lost; otherwise absent |
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import re
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import msgspec

from kohort.broker.authorization import CLUSTER_NAME, Caller, Resource
from kohort.broker.security.principals import Principal
from kohort.broker.server.requests import Request
from kohort.ids import AclOperation, AclPattern, AclPermission
from kohort.wire.cluster_admin import AlterClientQuotasRequest, AlterClientQuotasResponse
from kohort.wire.data import DeleteRecordsRequest, DeleteRecordsResponse
from kohort.wire.discovery import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from kohort.wire.groups import DeleteGroupsResponse
from kohort.wire.message import Message
from kohort.wire.offsets import OffsetDeleteRequest, OffsetDeleteResponse
from kohort.wire.security import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsResponse,
)

log = logging.getLogger("kohort.broker")

FILE = "audit.log"
QUEUE_MAX = 10_000
"""The most entries that wait for the disk, about 5 MB of memory. Entries beyond it are lost and counted."""
REPEAT_S = 10.0
"""Equal refusals within this time are one line."""
REPEATS_MAX = 1_000
"""The most refusals remembered, which bounds memory; clients choose names."""
REPEATS_OF_HOST_MAX = 50
"""The most different refusals of an address within that time. Others are one line: a client invents names at will."""
OTHERS = "(others)"
"""The name that replaces resources of refusals, or principals of logins, in a line that counts many different ones."""
TEXT_MAX = 1_000
"""The longest text of a field. Clients choose names of up to 32,767 bytes."""
WAKE_S = 1.0
CLOSE_S = 5.0
"""Time that the last entries get to reach the disk when the broker ends."""

BY_CERTIFICATE = "SSL"
"""The mechanism of a login by the certificate that a client shows in TLS."""
_BEYOND_ASCII = re.compile("[^\x00-\x7e]")
_DELETE = b"\x7f"

Entry: TypeAlias = dict[str, Any]


class AuditLog:
    """The audit log of one broker. All methods may be called on the loop: they never wait."""

    def __init__(self, path: Path, file_bytes: int, files: int) -> None:
        """Create a log; nothing is written before the first entry.

        Args:
            path: the current file. Older ones have a number at the end, 1 for the latest.
            file_bytes: a file of this size is renamed, and a new one is begun.
            files: the number of files kept, with the current one.
        """
        self._lost_in_queue = self._lost_on_disk = self._lost_logged = 0
        self._queue: queue.Queue[Entry | None] = queue.Queue(QUEUE_MAX)
        self._file = _RotatedFile(path, file_bytes, files)
        self._repeats: OrderedDict[tuple[Any, ...], _Repeat] = OrderedDict()
        self._of_host: Counter[str] = Counter()
        self._thread: threading.Thread | None = None
        self._failing = False

    @property
    def lost_entries(self) -> int:
        """The number of entries that were lost since the broker's start."""
        return self._lost_in_queue + self._lost_on_disk

    # -- what is recorded

    def record_login(
        self, principal: Principal | str, host: str, mechanism: str, ok: bool, client_id: str | None = None
    ) -> None:
        """Record a login, successful or not, in the audit log.

        Args:
            principal: the principal, or the name that the client gave if its login failed.
            host: the client's address.
            mechanism: the SASL mechanism, or `SSL` of a certificate.
            ok: whether the login succeeded.
            client_id: the client id of the login's request, if it has one.
        """
        entry = {
            "event": "login",
            "principal": _cut(str(principal)),
            "host": host,
            "client_id": _cut(client_id),
            "api": None if mechanism == BY_CERTIFICATE else "SaslAuthenticate",
            "details": _cut(mechanism),
            "result": "succeeded" if ok else "failed",
        }
        self._enqueue(entry)

    def record_refusal(self, caller: Caller, operation: AclOperation, resource: Resource, name: str) -> None:
        """Record that a client may not do an operation on a resource."""
        self._enqueue({"event": "refusal", **_of(caller, operation.name, resource.name, name), "result": "refused"})

    def record_change(self, caller: Caller, change: AuditedChange) -> None:
        """Record a change that a client made, in the audit log."""
        entry = _of(caller, change.operation, change.resource_type, change.name)
        details = {"details": _cut(change.details)} if change.details else {}
        self._enqueue({"event": "change", **entry, **details, "result": "allowed"})

    def record_changes_of_response(self, request: Request[Any], response: Message) -> None:
        """Record the changes that a request made, by its response."""
        if getattr(request.message, "validate_only", False):
            return
        for change in CHANGES[request.api](request.message, response):
            if not change.error:
                self.record_change(request, change)

    def _enqueue(self, entry: Entry) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._write_all, name="kohort-audit", daemon=True)
            self._thread.start()
        entry["time"] = time.time()
        if _is_repeatable(entry) and self._queue.qsize() >= QUEUE_MAX // 2:
            self._lost_in_queue += 1
            return
        try:
            self._queue.put_nowait(entry)
        except queue.Full:
            self._lost_in_queue += 1

    def close_log(self) -> None:
        """Write the waiting audit entries, and close the file."""
        thread = self._thread
        if thread is None:
            return
        with contextlib.suppress(queue.Full):
            self._queue.put(None, timeout=CLOSE_S)
            thread.join(CLOSE_S)

    # -- the thread

    def _write_all(self) -> None:
        while True:
            try:
                entry = self._queue.get(timeout=WAKE_S if self._repeats else None)
            except queue.Empty:
                self._write_repeats(time.monotonic() - REPEAT_S)
                continue
            if entry is None:
                break
            if _is_repeatable(entry):
                self._write_repeatable(entry)
            else:
                self._write_entry(entry)
            self._write_repeats(time.monotonic() - REPEAT_S)
        self._write_repeats(float("inf"))
        self._file.close_file()

    def _write_repeatable(self, entry: Entry) -> None:
        key = _repeat_key(entry)
        host = entry["host"]
        if key not in self._repeats and self._of_host[host] >= REPEATS_OF_HOST_MAX:
            entry = {**entry, "resource" if entry["event"] == "refusal" else "principal": OTHERS}
            key = (entry["event"], host, OTHERS)
        repeat = self._repeats.get(key)
        if repeat is not None:
            repeat.count += 1
            repeat.latest = entry
            return
        self._repeats[key] = _Repeat(entry)
        self._of_host[host] += 1
        self._write_entry(entry)
        if len(self._repeats) > REPEATS_MAX:
            self._write_repeat(self._repeats.popitem(last=False)[1])

    def _write_repeats(self, before: float) -> None:
        """Write how often entries were repeated that were first written before this time of the monotonic clock."""
        while self._repeats:
            key, repeat = next(iter(self._repeats.items()))
            if repeat.since_s > before:
                return
            del self._repeats[key]
            self._write_repeat(repeat)

    def _write_repeat(self, repeat: _Repeat) -> None:
        """Write how often an entry was repeated, when the log stops remembering it."""
        host = repeat.latest["host"]
        self._of_host[host] -= 1
        if not self._of_host[host]:
            del self._of_host[host]
        if repeat.count:
            self._write_entry({**repeat.latest, "count": repeat.count})

    def _write_entry(self, entry: Entry) -> None:
        lines = []
        lost = self.lost_entries
        try:
            if lost > self._lost_logged:
                lines.append(_line({"event": "lost", "count": lost - self._lost_logged, "time": time.time()}))
            lines.append(_line(entry))
            self._file.write_lines(b"".join(lines))
        except Exception as error:  # noqa: BLE001 - a full disk; or a bug, which must not end the thread
            self._lost_on_disk += 1
            if not self._failing:
                log.error(
                    "audit log %s can't be written: %s; entries are lost until writing works again",
                    self._file.path,
                    error,
                )
            self._failing = True
            return
        missing, self._lost_logged = lost - self._lost_logged, lost
        if self._failing:
            log.warning("writing to audit log %s works again: %d entries are missing in it", self._file.path, missing)
        self._failing = False


class _Repeat:
    """An audit entry that was written once, with the number of equal ones that followed and are not written yet."""

    __slots__ = ("count", "latest", "since_s")

    def __init__(self, entry: Entry) -> None:
        self.since_s = time.monotonic()
        self.count = 0
        self.latest = entry


class _RotatedFile:
    """The current audit log file, which only its owner can read; it is renamed when it is full.

    After a full disk, the next entry begins on a new line.
    """

    def __init__(self, path: Path, file_bytes: int, files: int) -> None:
        self.path = path
        self._file_bytes = file_bytes
        self._files = files
        self._fd = -1
        self._size = 0
        self._whole = True

    def write_lines(self, data: bytes) -> None:
        """Append lines to the audit log file.

        Raises:
            OSError: they could not be written as a whole.
        """
        if self._fd >= 0 and self._size and self._size + len(data) > self._file_bytes:
            self._rotate()
        if self._fd < 0:
            self._open_file()
        if not self._whole:
            data = b"\n" + data
        written = os.write(self._fd, data)
        self._size += written
        self._whole = written == len(data)
        if not self._whole:
            raise OSError(f"only {written} of {len(data)} bytes could be written")

    def _open_file(self) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(self.path, flags, 0o600)
        self._size = os.fstat(self._fd).st_size
        self._whole = not self._size or os.pread(self._fd, 1, self._size - 1) == b"\n"

    def _rotate(self) -> None:
        self.close_file()
        for number in range(self._files - 1, 0, -1):
            source = self._numbered(number - 1)
            if source.exists():
                source.replace(self._numbered(number))
        if self._files == 1:
            self.path.unlink(missing_ok=True)

    def _numbered(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}") if number else self.path

    def close_file(self) -> None:
        """Close the audit log file; a later line opens it again."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


def _is_repeatable(entry: Entry) -> bool:
    """Return whether repeats of an audit entry are counted in one line: clients can cause such entries at will."""
    return entry["event"] in ("refusal", "login")


def _repeat_key(entry: Entry) -> tuple[Any, ...]:
    return tuple(value for name, value in entry.items() if name != "time")


def _line(entry: Mapping[str, Any]) -> bytes:
    """Return an entry as a line of ASCII: a terminal takes other characters of clients as commands, or as new lines."""
    moment = datetime.fromtimestamp(entry["time"], UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    data = msgspec.json.encode({"time": moment, **{key: value for key, value in entry.items() if key != "time"}})
    if not data.isascii() or _DELETE in data:
        data = _BEYOND_ASCII.sub(_escaped, data.decode()).encode()
    return data + b"\n"


def _escaped(found: re.Match[str]) -> str:
    """Return a character as JSON's escapes, one for each unit of UTF-16."""
    units = found[0].encode("utf-16-be")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def _of(caller: Caller, operation: str, resource_type: str, name: str) -> Entry:
    return {
        "principal": _cut(str(caller.principal)),
        "host": caller.host,
        "client_id": _cut(caller.client_id),
        "api": caller.api,
        "operation": operation,
        "resource_type": resource_type,
        "resource": _cut(name),
    }


def _cut(text: str | None) -> str | None:
    if text is None:
        return None
    if not text.isascii():
        text = text.encode(errors="replace").decode()  # half a surrogate pair can't be written
    return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}…"


# -- changes, by the responses of the APIs that make them


class AuditedChange(NamedTuple):
    """A change that a request asked for, and its error code."""

    operation: str
    resource_type: str
    name: str
    error: int = 0
    details: str = ""


def _created(request: CreateTopicsRequest, response: CreateTopicsResponse) -> Iterator[AuditedChange]:
    configs = {topic.name: ", ".join(config.name for config in topic.configs) for topic in request.topics}
    for topic in response.topics:
        yield AuditedChange("CREATE", "TOPIC", topic.name, topic.error_code, configs.get(topic.name, ""))


def _deleted(_request: Message, response: DeleteTopicsResponse) -> Iterator[AuditedChange]:
    for topic in response.responses:
        yield AuditedChange("DELETE", "TOPIC", topic.name or str(topic.topic_id), topic.error_code)


def _grown(request: CreatePartitionsRequest, response: CreatePartitionsResponse) -> Iterator[AuditedChange]:
    counts = {topic.name: f"{topic.count} partitions" for topic in request.topics}
    for topic in response.results:
        yield AuditedChange("ALTER", "TOPIC", topic.name, topic.error_code, counts.get(topic.name, ""))


def _records_deleted(_request: DeleteRecordsRequest, response: DeleteRecordsResponse) -> Iterator[AuditedChange]:
    for topic in response.topics:
        for part in topic.partitions:
            details = f"partition {part.partition_index}, records before {part.low_watermark}"
            yield AuditedChange("DELETE", "TOPIC", topic.name, part.error_code, details)


def _configured(
    request: AlterConfigsRequest | IncrementalAlterConfigsRequest,
    response: AlterConfigsResponse | IncrementalAlterConfigsResponse,
) -> Iterator[AuditedChange]:
    names = {
        (resource.resource_type, resource.resource_name): ", ".join(config.name for config in resource.configs)
        for resource in request.resources
    }
    kinds = {2: "TOPIC", 4: "BROKER", 32: "GROUP"}
    for result in response.responses:
        kind = kinds.get(result.resource_type, str(result.resource_type))
        details = names.get((result.resource_type, result.resource_name), "")
        yield AuditedChange("ALTER_CONFIGS", kind, result.resource_name, result.error_code, details)


def _groups_deleted(_request: Message, response: DeleteGroupsResponse) -> Iterator[AuditedChange]:
    for group in response.results:
        yield AuditedChange("DELETE", "GROUP", group.group_id, group.error_code)


def _offsets_deleted(request: OffsetDeleteRequest, response: OffsetDeleteResponse) -> Iterator[AuditedChange]:
    for topic in response.topics:
        for part in topic.partitions:
            details = f"offset of {topic.name}-{part.partition_index}"
            yield AuditedChange("DELETE", "GROUP", request.group_id, response.error_code or part.error_code, details)


def _acls_created(request: CreateAclsRequest, response: CreateAclsResponse) -> Iterator[AuditedChange]:
    for acl, result in zip(request.creations, response.results, strict=True):
        if result.error_code:
            continue
        pattern, words = acl.resource_pattern_type, _rule(acl)
        yield AuditedChange(
            "ALTER", "CLUSTER", CLUSTER_NAME, 0, f"added: {words} {AclPattern(pattern).name} {acl.resource_name}"
        )


def _acls_deleted(_request: Message, response: DeleteAclsResponse) -> Iterator[AuditedChange]:
    for result in response.filter_results:
        for acl in result.matching_acls:
            words, pattern = _rule(acl), AclPattern(acl.pattern_type).name
            yield AuditedChange(
                "ALTER", "CLUSTER", CLUSTER_NAME, result.error_code, f"deleted: {words} {pattern} {acl.resource_name}"
            )


def _rule(
    acl: CreateAclsRequest.AclCreation | DeleteAclsResponse.DeleteAclsFilterResult.DeleteAclsMatchingAcl,
) -> str:
    may, operation = AclPermission(acl.permission_type).name, AclOperation(acl.operation).name
    return f"{may} {acl.principal} from {acl.host} {operation} {Resource(acl.resource_type).name}"


def _users_changed(
    request: AlterUserScramCredentialsRequest, response: AlterUserScramCredentialsResponse
) -> Iterator[AuditedChange]:
    details = {deletion.name: f"credential {deletion.mechanism} deleted" for deletion in request.deletions}
    for upsertion in request.upsertions:
        details[upsertion.name] = f"credential {upsertion.mechanism} set, {upsertion.iterations} iterations"
    for result in response.results:
        yield AuditedChange("ALTER", "USER", result.user, result.error_code, details.get(result.user, ""))


def _quotas_changed(request: AlterClientQuotasRequest, response: AlterClientQuotasResponse) -> Iterator[AuditedChange]:
    for entry, result in zip(request.entries, response.entries, strict=False):
        name = ", ".join(f"{part.entity_type}={part.entity_name or '<default>'}" for part in entry.entity)
        details = ", ".join(op.key for op in entry.ops)
        yield AuditedChange("ALTER_CONFIGS", "QUOTA", name, result.error_code, details)


CHANGES: dict[str, Callable[[Any, Any], Iterator[AuditedChange]]] = {
    "AlterClientQuotas": _quotas_changed,
    "AlterConfigs": _configured,
    "AlterUserScramCredentials": _users_changed,
    "CreateAcls": _acls_created,
    "CreatePartitions": _grown,
    "CreateTopics": _created,
    "DeleteAcls": _acls_deleted,
    "DeleteGroups": _groups_deleted,
    "DeleteRecords": _records_deleted,
    "DeleteTopics": _deleted,
    "IncrementalAlterConfigs": _configured,
    "OffsetDelete": _offsets_deleted,
}
"""The APIs that change something, with the changes in their responses."""
