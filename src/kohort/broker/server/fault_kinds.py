"""Fault rules as plain data, created in the test's process and applied in the broker's."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from kohort.errors import ErrorCode, InvalidInputError

ACTIONS = ("fail", "delay", "drop", "drop_reply", "hold", "hold_reply", "close", "close_after", "garble")


@dataclass(frozen=True, slots=True)
class Fault:
    """One rule of fault injection: which requests it matches, and what happens to them.

    Attributes:
        api: Kafka's API name, such as "JoinGroup", or a push frame's, such as "RegisterConsumer"; None: any. For
            requests to a consumer ("Ping", "Stop", "Start"), handling means sending, and the consumer responds.
        action: "fail" responds with `error` only; "delay" handles the request after `delay_ms`; "drop" neither handles
            nor responds; "drop_reply" handles without a response; "hold" and "hold_reply" wait at the barrier before
            handling, or before the response; "close" closes the connection without handling; "close_after" handles,
            then closes the connection instead of responding; "garble" handles, then sends bytes that no client can
            decode.
        group: group id in the request; None: any, also requests without a group.
        client_id: client id in the request header, or the consumer's id in push frames; None: any.
        skip: the number of matching requests that pass first.
        times: the number of requests that the rule then applies to; None: all.
        error: error code for "fail": an `ErrorCode`, its name such as "REBALANCE_IN_PROGRESS", or its number; kept as
            `ErrorCode`. A Ping response has no error field, so its connection is closed.
        delay_ms: delay for "delay".
    """

    api: str | None
    action: str
    group: str | None = None
    client_id: str | None = None
    skip: int = 0
    times: int | None = 1
    error: int | str = ErrorCode.UNKNOWN_SERVER_ERROR
    delay_ms: int = 0

    def __post_init__(self) -> None:
        if self.action not in ACTIONS:
            raise InvalidInputError(f"a fault's action must be one of {', '.join(ACTIONS)}, not {self.action!r}")
        object.__setattr__(self, "error", _error_code(self.error))

    def __str__(self) -> str:
        """The requests and the action, as "on OffsetCommit of group 'billing' (close_after)"."""
        owners = {"group": self.group, "client": self.client_id}
        of = "".join(f" of {kind} {name!r}" for kind, name in owners.items() if name is not None)
        return f"on {self.api or 'any request'}{of} ({self.action})"


def _error_code(given: object) -> ErrorCode:
    """Return the code for a member, a name or a number.

    Raises:
        InvalidInputError: there is no such code; the message names the nearest.
    """
    names = list(ErrorCode.__members__)
    if isinstance(given, str):
        if given in names:
            return ErrorCode[given]
        near = difflib.get_close_matches(given.upper(), names, n=1, cutoff=0.7)
    else:
        near = []
        if isinstance(given, int) and not isinstance(given, bool) and given in {*ErrorCode}:
            return ErrorCode(given)
    hint = f"did you mean {near[0]}?" if near else "give a name of Kafka's, as 'REBALANCE_IN_PROGRESS', or its number"
    raise InvalidInputError(f"a fault's error {given!r} is no error code; {hint}")
