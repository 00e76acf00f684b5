"""Fixed workers over hashed queues: an assignor that hangs holds up the groups of its queue. Source: spec 4.9."""

from __future__ import annotations

import threading

from kohort.broker.host import AssignmentThreads

WAIT_S = 20.0


def test_a_group_whose_assignor_hangs_holds_up_none_in_another_queue() -> None:
    dividers = AssignmentThreads(4)
    go_on = threading.Event()
    try:
        hung = dividers.assignment_executor_of("hung").submit(go_on.wait, WAIT_S)
        names = [f"g{number}" for number in range(40)]
        others = [
            name
            for name in names
            if dividers.assignment_executor_of(name) is not dividers.assignment_executor_of("hung")
        ]
        same = next(
            name for name in names if dividers.assignment_executor_of(name) is dividers.assignment_executor_of("hung")
        )
        behind = dividers.assignment_executor_of(same).submit(str, "done")
        for name in others:
            assert dividers.assignment_executor_of(name).submit(str, name).result(WAIT_S) == name
        assert len({id(dividers.assignment_executor_of(name)) for name in names}) == 4
        assert not hung.done()
        assert not behind.done(), "it waits in the queue of the one that hangs"
        go_on.set()
        assert behind.result(WAIT_S) == "done"
    finally:
        go_on.set()
        dividers.close()
