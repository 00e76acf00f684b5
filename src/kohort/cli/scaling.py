"""`kohort groups scale` and `kohort scaler`: how many members a group needs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from kohort.cli.app import DONE, UsageError
from kohort.cli.common import (
    DEFAULT_CALL_MS,
    Common,
    EndingSignals,
    ServerOptions,
    check_names,
    listen_address,
    log_to_stderr,
    make_client,
    parse_duration_option,
    print_errors,
)
from kohort.cli.output import print_json_line, print_rows
from kohort.errors import InvalidInputError, KafkaError

if TYPE_CHECKING:  # the client is imported by the commands that need it
    from kohort.lag import LagReader
    from kohort.lag.scaling import ScalingDecision, ScalingTarget

OF_SCALE = (
    "group", "members", "wanted", "needed", "why", "written_rate", "rate", "member_rate", "time_lag", "downtime_s",
    "blocked",
)  # fmt: skip
LISTEN_DEFAULT = "127.0.0.1:9309"
LOOK_INTERVAL_S = 5.0
"""The time between two reads: that of the usual commits."""
_COMMON = Common()
_SECURITY = ServerOptions()


def scale(
    *groups: str,
    max_lag: str,
    look: str = "30s",
    min_: Annotated[int, Parameter(name="--min")] = 1,
    max_: Annotated[int | None, Parameter(name="--max")] = None,
    common: Common = _COMMON,
) -> int:
    """How many members groups need to keep their time lag under a target, and why. The command changes nothing.

    Rates are measured for as long as --look says. A number below the present one needs a longer
    measurement, as `kohort scaler` makes. `wanted` is the number to set now, `needed` that for the measured rates.

    Args:
        groups: their names.
        max_lag: The target: the longest time lag, as in 30s or 5m.
        look: How long rates are measured; at least 25s.
        min_: The fewest members.
        max_: The most members; else as many as the group has partitions.
    """
    if not groups:
        raise UsageError("name groups")
    check_names("group", *groups)
    target, look_ms = scaling_target(max_lag, min_, max_), parse_duration_option("--look", look)
    with common.lag_reader(DEFAULT_CALL_MS) as reader:
        decisions, errors = _decided(reader, groups, target, look_ms / 1000)
    rows = [scale_row(decision) for decision in decisions.values()]
    print_rows(rows, OF_SCALE, as_json=common.json, empty=None if errors else "no groups")
    return print_errors(errors)


def _decided(
    reader: LagReader, groups: tuple[str, ...], target: ScalingTarget, look_s: float
) -> tuple[dict[str, ScalingDecision], dict[str, KafkaError]]:
    from kohort.client.admin.group_changes import errors_with_similar_names
    from kohort.lag.reading import REBALANCES_ASKED
    from kohort.lag.scaling import ScalingState, decide_member_count, unknown_lag_reason

    reader.rebalances = REBALANCES_ASKED
    states: dict[str, ScalingState] = {}
    decisions: dict[str, ScalingDecision] = {}
    end = time.monotonic() + look_s
    while True:
        started = time.monotonic()
        report = reader.read(groups)
        for name, group in report.groups.items():
            known = decisions.get(name)
            if known is not None and known.needed is not None and known.wanted != known.members:
                continue  # it is decided, and nobody carries it out here
            decisions[name], states[name] = decide_member_count(group, report.taken_ms, target, states.get(name))
        if time.monotonic() >= end or not report.groups:
            break
        time.sleep(max(0.0, min(started + LOOK_INTERVAL_S, end) - time.monotonic()))
    errors = errors_with_similar_names(report.errors, lambda: list(reader.listing or ()))
    for failure in report.failures:
        errors[failure.part] = KafkaError(f"{failure.part}: {failure.text}")
    for name in list(decisions):
        last = report.groups.get(name)
        if last is None:  # deleted since, or its coordinator is lost
            del decisions[name]
            errors.setdefault(name, KafkaError(f"group {name} was left out of the last read"))
        elif not last.known_partitions:
            del decisions[name]
            errors[name] = KafkaError(f"the lag of group {name} is unknown: {unknown_lag_reason(last)}")
    return decisions, errors


def scaling_target(max_lag: str, fewest: int, most: int | None) -> ScalingTarget:
    """Return the scaling target that these options describe.

    Raises:
        UsageError: an option is invalid.
    """
    from kohort.lag.scaling import ScalingTarget

    try:
        return ScalingTarget(parse_duration_option("--max-lag", max_lag), fewest, most)
    except InvalidInputError as error:
        raise UsageError(error.message) from error


def scale_row(decision: ScalingDecision) -> dict[str, Any]:
    """Return the output row of a scaling decision."""
    return {
        "group": decision.group,
        "members": decision.members,
        "wanted": decision.wanted,
        "needed": decision.needed,
        "why": decision.why,
        "written_rate": _rounded(decision.written_per_s),
        "rate": _rounded(decision.read_per_s),
        "member_rate": _rounded(decision.member_per_s),
        "time_lag": None if decision.time_lag_ms is None else round(decision.time_lag_ms / 1000, 3),
        "downtime_s": None if decision.downtime_ms is None else round(decision.downtime_ms / 1000, 3),
        "blocked": [str(partition) for partition in decision.blocked],
    }


def _rounded(rate: float | None) -> float | None:
    return None if rate is None else round(rate, 1)


# -- `kohort scaler`


def scaler(
    *,
    listen: str = LISTEN_DEFAULT,
    interval: int = 10_000,
    group: tuple[str, ...] = (),
    security: ServerOptions = _SECURITY,
    common: Common = _COMMON,
) -> int:
    """How many members groups need, for KEDA's external scaler over gRPC. Ends with SIGTERM or Ctrl-C.

    Prints the line `ready HOST:PORT`. The groups and their targets are in the metadata of KEDA's triggers. It changes
    nothing in the cluster. An address that other machines can reach needs --tls with --client-ca, or --insecure. Needs
    the extra `scaler`.

    Args:
        listen: HOST:PORT; port 0 picks a free one.
        interval: Milliseconds between two reads of the cluster.
        group: Serve only this group; may be given again. Calls for others end with PERMISSION_DENIED.
    """
    check_names("group", *group)
    host, port = listen_address(listen)
    if interval < 1:
        raise UsageError(f"--interval {interval}: give a number of milliseconds from 1 on")
    certificates = security.certificates("scaler")
    try:
        from kohort.lag.scaler import GroupScaling, ScalerServer
    except ModuleNotFoundError as error:
        if error.name != "grpc":
            raise
        raise UsageError("the scaler needs the package grpcio: pip install 'kohort[scaler]'") from None
    from kohort.client.settings import ConnectionConfig
    from kohort.lag import LagReader
    from kohort.lag.reading import REBALANCES_ASKED

    servers, connection = common.client_settings(ConnectionConfig)
    reader = make_client(LagReader, servers, connection)
    reader.rebalances = REBALANCES_ASKED
    log_to_stderr()
    ended = EndingSignals()
    with GroupScaling(reader, interval / 1000, group) as scaling:
        try:
            server = ScalerServer(host, port, scaling, certificates, is_insecure=security.insecure)
        except InvalidInputError as error:
            raise UsageError(error.message) from error
        with server:
            if common.json:
                print_json_line({"ready": server.address})
            else:
                print(f"ready {server.address}", flush=True)
            ended.wait()
    return DONE
