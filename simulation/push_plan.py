"""Plans whose members all speak the push protocol: the same faults, and those of push members, at closer quarters."""

from __future__ import annotations

from simulation.plan import Draft, Known

PUSH_MORE = ("half_open", "half_open", "freeze", "freeze", "twin")
MORE_EVERY_MS = 5_000


class PushDraft(Draft):
    """Draws one seed's plan; every member that it starts is a push member."""

    def add_member(self, at_ms: int, group_id: str, instance_id: str | None = None) -> None:
        """Someone starts; the protocol has no instance ids."""
        known = self.pushing.start(at_ms, group_id)
        self.living.append(Known(known.name, known.kind, known.habits))

    def mix(self) -> tuple[str, ...]:
        """No other groups; what goes wrong with push members only."""
        chance, at_ms = self.pushing.chance, 0.0
        while (at_ms := at_ms + chance.expovariate(1 / MORE_EVERY_MS)) < self.heal_ms:
            self.pushing.trouble_member(int(at_ms), chance.choice(PUSH_MORE), chance.choice(self.pushing.living))
        return ()
