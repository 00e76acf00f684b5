"""Fault rules as plain data, created in the test's process and applied in the broker's."""

from __future__ import annotations

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
        error: error code for "fail". A Ping response has no error field, so its connection is closed.
        delay_ms: delay for "delay".
    """

    api: str | None
    action: str
    group: str | None = None
    client_id: str | None = None
    skip: int = 0
    times: int | None = 1
    error: int = ErrorCode.UNKNOWN_SERVER_ERROR
    delay_ms: int = 0

    def __post_init__(self) -> None:
        if self.action not in ACTIONS:
            raise InvalidInputError(f"a fault's action must be one of {', '.join(ACTIONS)}, not {self.action!r}")
