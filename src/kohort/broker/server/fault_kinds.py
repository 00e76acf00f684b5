"""A fault rule as plain data: made in a test's process, carried out in the broker's."""

from __future__ import annotations

from dataclasses import dataclass

from kohort.errors import ErrorCode, InvalidInputError

ACTIONS = ("fail", "delay", "drop", "drop_reply", "hold", "hold_reply", "close", "close_after", "garble")


@dataclass(frozen=True, slots=True)
class Fault:
    """One rule: which requests, and what happens to them.

    Attributes:
        api: Kafka's name, as "JoinGroup", or that of a push frame, as "RegisterConsumer"; None: any. A frame that the
            coordinator asks ("Ping", "Stop", "Start") is handled when it is sent, and its answer is the consumer's.
        action: "fail" answers with `error` and does nothing else; "delay" handles it `delay_ms` later; "drop" neither
            handles nor answers; "drop_reply" handles but never answers; "hold" and "hold_reply" wait at the barrier
            before handling, or before answering; "close" ends the connection unhandled; "close_after" handles, then
            ends the connection in place of an answer; "garble" handles, then answers with bytes that no client can
            read.
        group: of the request; None: any, also requests without a group.
        client_id: of the request header, of push frames the consumer's id; None: any.
        skip: this many matching requests pass first.
        times: then this many are chosen; None: all.
        error: for "fail"; a Ping's answer has none, so that the connection ends.
        delay_ms: for "delay".
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
