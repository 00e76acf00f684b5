"""Fault injection for tests: rules that fail, delay, drop or hold chosen requests. Without rules it costs nothing.

A rule matches by API, group, client and occurrence. A held request waits at the rule's barrier until `release`. `Fault`
is plain data, so that it can be sent to a broker in a child process.
"""

from __future__ import annotations

import asyncio
import difflib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from kohort.broker.metrics import API_NAMES
from kohort.broker.server.connection import Connection
from kohort.broker.server.fault_kinds import Fault
from kohort.broker.server.refusals import error_response
from kohort.broker.server.requests import Request
from kohort.broker.transport import Parts
from kohort.errors import ErrorCode, InvalidInputError
from kohort.wire.message import Message

log = logging.getLogger("kohort.broker")

HELD_MAX = 10_000
"""The most held requests of a rule. Later requests pass, so that a forgotten barrier can't fill the memory."""


class FaultSubject(Protocol):
    """A subject of fault rules: a Kafka request, a request of a push consumer, or a request to a push consumer."""

    on_reply: Callable[[Parts], bool] | None
    """Callback that takes the response and returns whether to send it; None: send it."""

    @property
    def api(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def client_id(self) -> str | None: ...
    @property
    def connection(self) -> Connection: ...
    @property
    def message(self) -> object:
        """The request's message, in which a rule finds the group id."""

    def send(self, parts: Parts) -> None:
        """Send a response, in the form of encoded parts."""

    def undecodable_response(self) -> Parts:
        """Return response bytes that the client can't decode, to test how it handles them."""


class RefusableRequest(FaultSubject, Protocol):
    """A request or push request that a fault rule can answer with an error code."""

    def fail(self, error: ErrorCode, why: str) -> None: ...


@dataclass(slots=True)
class _Rule:
    """An active fault rule with its counters and the requests that it holds.

    Attributes:
        fault: the rule.
        seen: matching requests that reached it.
        hits: those that it applied to.
        preempted: matching requests that an earlier rule took.
        held: how each request at the barrier continues.
        open: whether the barrier is open.
    """

    fault: Fault
    seen: int = 0
    hits: int = 0
    preempted: int = 0
    held: list[Callable[[], None]] = field(default_factory=list)
    open: bool = False


class Faults:
    """The active fault rules, and the requests at their barriers. All methods run on the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._rules: dict[int, _Rule] = {}
        self._next = 1
        self._watchers: list[tuple[int, int, Callable[[], None]]] = []
        self.active = False

    def add(self, fault: Fault) -> int:
        """Activate a rule and return its number. The first rule that matches a request applies."""
        if fault.api is not None and fault.api not in API_NAMES.values():
            near = difflib.get_close_matches(fault.api, [*API_NAMES.values()], n=1)
            raise InvalidInputError(f"there is no api {fault.api!r}" + (f"; did you mean {near[0]}?" if near else ""))
        number = self._next
        self._next += 1
        self._rules[number] = _Rule(fault)
        self.active = True
        return number

    def hits(self, number: int) -> int:
        """Return how many requests the fault rule with this number has applied to."""
        rule = self._rules.get(number)
        return rule.hits if rule else 0

    def missing_hits_reason(self, number: int) -> str:
        """Return why a fault rule has matched fewer requests than a test expects, for its error message."""
        rule = self._rules.get(number)
        if rule is None:
            return "it was removed"
        reasons = []
        if passed := rule.seen - rule.hits:
            came = "1 such request" if passed == 1 else f"{passed} such requests"
            reasons.append(f"{came} came, and skip={rule.fault.skip} let {'it' if passed == 1 else 'them'} pass")
        if rule.preempted:
            count = "1 such request" if rule.preempted == 1 else f"{rule.preempted} such requests"
            reasons.append(f"an earlier fault took {count}")
        return "; ".join(reasons) or ("no other such request came" if rule.hits else "no such request came")

    def call_when_hit(self, number: int, times: int, then: Callable[[], None]) -> None:
        """Call `then` once the rule has matched this many requests."""
        self._watchers.append((number, times, then))
        self._notify_watchers()

    def release(self, number: int) -> None:
        """Open a rule's barrier: held requests continue, later ones pass."""
        rule = self._rules.get(number)
        if rule is None:
            return
        rule.open = True
        held, rule.held = rule.held, []
        for resume in held:
            resume()

    def remove(self, number: int) -> None:
        """Remove a rule and release the requests that it held."""
        self.release(number)
        self._rules.pop(number, None)
        self.active = bool(self._rules)

    def clear(self) -> None:
        """Remove all rules."""
        for number in list(self._rules):
            self.remove(number)

    def apply_rules(self, request: Request[Message] | RefusableRequest, run: Callable[[], None]) -> bool:
        """Apply the rules to a request.

        Returns:
            Whether a rule took the request over, so that the caller must not run it.
        """
        rules = iter(self._rules.values())
        for rule in rules:
            if not _matches(rule.fault, request):
                continue
            rule.seen += 1
            fault = rule.fault
            if rule.seen <= fault.skip or (fault.times is not None and rule.seen > fault.skip + fault.times):
                continue
            rule.hits += 1
            for later in rules:
                later.preempted += _matches(later.fault, request)
            log.info("[fault injection] action %s applied to request %s", fault.action, request.name)
            taken = self._act(rule, request, run)
            self._notify_watchers()
            return taken
        return False

    def _act(self, rule: _Rule, request: Request[Message] | RefusableRequest, run: Callable[[], None]) -> bool:
        fault = rule.fault
        match fault.action:
            case "fail":
                _fail(request, ErrorCode.of(int(fault.error)))
            case "delay":
                self._loop.call_later(fault.delay_ms / 1000, run)
            case "drop":
                pass
            case "close":
                request.connection.close()
            case "hold":
                if rule.open or len(rule.held) >= HELD_MAX:
                    return False
                rule.held.append(run)
            case "hold_reply":
                request.on_reply = lambda parts: self._hold_reply(rule, request, parts)
                return False
            case "drop_reply":
                request.on_reply = lambda _parts: False
                return False
            case "garble":
                request.on_reply = lambda _parts: _garble(request)
                return False
            case _:
                request.on_reply = lambda _parts: _close_instead(request)
                return False
        return True

    def _hold_reply(self, rule: _Rule, request: FaultSubject, parts: Parts) -> bool:
        if rule.open or len(rule.held) >= HELD_MAX:
            return True

        def send_held_reply() -> None:
            request.on_reply = None
            request.send(parts)

        rule.held.append(send_held_reply)
        return False

    def _notify_watchers(self) -> None:
        waiting = self._watchers
        self._watchers = [(n, times, then) for n, times, then in waiting if self.hits(n) < times]
        for number, times, then in waiting:
            if self.hits(number) >= times:
                then()


def _fail(request: Request[Message] | RefusableRequest, error: ErrorCode) -> None:
    why = "injected fault"
    if isinstance(request, Request):
        request.reply(error_response(request, error, why))
    else:
        request.fail(error, why)


def _close_instead(request: FaultSubject) -> bool:
    request.connection.close()
    return False


def _garble(request: FaultSubject) -> bool:
    request.on_reply = None
    request.send(request.undecodable_response())
    return False


def _matches(fault: Fault, request: FaultSubject) -> bool:
    if fault.api is not None and request.api != fault.api:
        return False
    if fault.client_id is not None and request.client_id != fault.client_id:
        return False
    return fault.group is None or fault.group in _groups_of(request.message)


def _groups_of(message: object) -> list[str]:
    group = getattr(message, "group_id", None)
    if group:
        return [group]
    names = getattr(message, "groups_names", None) or getattr(message, "group_ids", None)
    if names:
        return list(names)
    groups = getattr(message, "groups", None) or ()
    names_in_groups = [group if isinstance(group, str) else group.group_id for group in groups]
    key = getattr(message, "key", None)
    return [*names_in_groups, *([key] if isinstance(key, str) else ())]
