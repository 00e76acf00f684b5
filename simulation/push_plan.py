"""Plans whose members speak the push protocol: the same faults, and members of our own that are pinged and stopped."""

from __future__ import annotations

from simulation.admin_checkers import DeletionChecker, DescriptionChecker
from simulation.checkers import ALL
from simulation.plan import Draft, Known
from simulation.process import Habits
from simulation.property import Checker

PUSH = "OwnPushMember"


class PushDraft(Draft):
    """Draws one seed's plan; every member that it starts is a push member."""

    def add_member(self, at_ms: int, group_id: str, instance_id: str | None = None) -> None:
        """Someone starts; the protocol has no instance ids."""
        chance = self.chance
        self.started += 1
        habits = Habits(
            group_id,
            self.topics if not self.differ else self.some_topics(),
            session_timeout_ms=chance.choice((6_000, 8_000)),
            commit_ms=chance.choice((1_000, 5_000)),
            callback_ms=chance.choice((0, 50, 2_000)),
            commits_on_revocation=chance.likely(0.7),
            keeps_lease=True,
            clock_rate=chance.choice((0.985, 1.0, 1.0, 1.015)),
        )
        known = Known(f"c{self.started}", PUSH, habits)
        self.living.append(known)
        self.add(at_ms, "start", name=known.name, kind=known.kind, habits=habits)


OF_OTHERS = (DeletionChecker, DescriptionChecker)
"""What these two look at is told by the records of the other protocols."""
PUSH_CHECKERS: tuple[type[Checker], ...] = tuple(checker for checker in ALL if checker not in OF_OTHERS)
