"""A member's record of its past rebalances, in virtual time."""

from __future__ import annotations

import pytest

from kohort.client.group.subscription import Subscription
from kohort.client.offsets import Rebalance
from kohort.errors import ErrorCode
from tests.client.test_membership import Coordinator as ClassicCoordinator
from tests.client.test_membership import parts
from tests.client.test_membership_consumer import Coordinator as ConsumerCoordinator

Trial = ClassicCoordinator | ConsumerCoordinator


@pytest.fixture(params=["classic", "cooperative", "consumer"])
def trial(request: pytest.FixtureRequest) -> Trial:
    if request.param == "consumer":
        return ConsumerCoordinator()
    return ClassicCoordinator("range" if request.param == "classic" else "cooperative-sticky")


def give(trial: Trial, *numbers: int) -> None:
    """Have the group give this next; the member hears of it within a second."""
    if isinstance(trial, ClassicCoordinator):
        trial.rebalance(*parts(*numbers))
    else:
        trial.news, trial.epoch = parts(*numbers), trial.epoch + 1
        pass_ms(trial, 1_000)


def pass_ms(trial: Trial, duration_ms: float) -> None:
    trial.world.run(trial.world.runtime.now_ms + duration_ms)


def sizes(rebalance: Rebalance) -> tuple[int, int, int]:
    return rebalance.held, rebalance.gained, rebalance.lost


def test_there_is_none_before_the_first_assignment_which_is_the_first(trial: Trial) -> None:
    assert trial.member.rebalances == 0 and not trial.member.last_rebalances
    trial.subscribe("a")
    (first,) = trial.member.last_rebalances
    assert (first.number, sizes(first)) == (1, (4, 4, 0))
    assert (first.generation, first.member_id) == (trial.member.assignment.generation, "m-1")
    assert 0 <= first.began_ms <= first.ended_ms
    pass_ms(trial, 10_000)
    assert trial.member.rebalances == 1, "nothing has happened since"


def test_the_first_lasts_since_the_member_began_to_join(trial: Trial) -> None:
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    if isinstance(trial, ClassicCoordinator):
        trial.join_errors = [loading] * 1_000
    else:
        trial.error = loading
    trial.member.subscribe(Subscription(("a",)))
    pass_ms(trial, 3_000)
    assert not trial.member.last_rebalances
    if isinstance(trial, ClassicCoordinator):
        trial.join_errors = []
    else:
        trial.error = ErrorCode.NONE
    pass_ms(trial, 3_000)
    (first,) = trial.member.last_rebalances
    assert first.began_ms < 1_000 and first.ended_ms >= 3_000


def test_it_lasts_from_the_wish_of_the_group_to_the_new_assignment(trial: Trial) -> None:
    member = trial.subscribe("a")
    give(trial, 0, 1)
    assert member.revocation is not None and member.rebalances == 1
    asked_ms = trial.world.runtime.now_ms
    pass_ms(trial, 7_000)
    member.release()
    pass_ms(trial, 500)
    second, *more = (rebalance for rebalance in member.last_rebalances if rebalance.number > 1)
    assert sizes(second) == (2, 0, 2)
    assert asked_ms - 1_000 <= second.began_ms <= asked_ms
    assert asked_ms + 7_000 <= second.ended_ms <= asked_ms + 7_500
    assert [sizes(rebalance) for rebalance in more] == ([(2, 0, 0)] if is_cooperative(trial) else [])
    assert member.last_rebalances[-1].generation == member.assignment.generation


def is_cooperative(trial: Trial) -> bool:
    return isinstance(trial, ClassicCoordinator) and not trial.member.protocol.eager


def test_what_is_gained_while_nothing_is_given_up_is_one_too(trial: Trial) -> None:
    if isinstance(trial, ClassicCoordinator):
        trial.given = parts(0)
    else:
        trial.news = parts(0)
    member = trial.subscribe("a")
    give(trial, 0, 1, 2)
    if member.revocation is not None:  # an eager member gives up all first
        member.release()
        pass_ms(trial, 500)
    assert [sizes(rebalance) for rebalance in member.last_rebalances] == [(1, 1, 0), (3, 2, 0)]


def test_who_was_put_out_is_in_one_until_it_is_back(trial: Trial) -> None:
    member = trial.subscribe("a")
    error = ErrorCode.UNKNOWN_MEMBER_ID
    if isinstance(trial, ClassicCoordinator):
        trial.heartbeat, trial.given = error, parts(3)
    else:
        trial.error, trial.news = error, parts(3)
    pass_ms(trial, 1_500)
    assert member.revocation is not None and member.revocation.lost and member.rebalances == 1
    lost_ms = trial.world.runtime.now_ms
    if isinstance(trial, ClassicCoordinator):
        trial.heartbeat = ErrorCode.NONE
    else:
        trial.error = ErrorCode.NONE
    pass_ms(trial, 3_000)
    member.release()
    pass_ms(trial, 500)
    assert [sizes(rebalance) for rebalance in member.last_rebalances] == [(4, 4, 0), (1, 0, 3)]
    second = member.last_rebalances[-1]
    assert second.began_ms <= lost_ms < lost_ms + 3_000 <= second.ended_ms
    assert second.member_id == member.assignment.member_id


def test_only_the_last_are_remembered_under_their_numbers(trial: Trial) -> None:
    member = trial.subscribe("a")
    for turn in range(20):
        give(trial, turn % 4)
        while member.revocation is not None:
            member.release()
            pass_ms(trial, 500)
    numbers = [rebalance.number for rebalance in member.last_rebalances]
    assert len(numbers) == 16
    assert numbers == list(range(member.rebalances - 15, member.rebalances + 1))
