"""Places of a listener: who loses one for whom."""

from __future__ import annotations

from kohort.io.connection_gate import ConnectionGate


class Connections:
    def __init__(self, gate: ConnectionGate) -> None:
        self.gate, self.closed = gate, list[str]()

    def enter(self, name: str, address: str = "a") -> object:
        return self.gate.admit_connection(address, lambda: self.closed.append(name))


def test_oldest_stranger_makes_room_for_a_newcomer() -> None:
    connections = Connections(ConnectionGate(9, strangers_max=2))
    for name in ("first", "second", "third", "fourth"):
        connections.enter(name)
    assert connections.closed == ["first", "second"]


def test_address_with_too_many_strangers_loses_its_own() -> None:
    connections = Connections(ConnectionGate(9, strangers_max=9, of_address_max=2))
    connections.enter("other", "b")
    for name in ("first", "second", "third"):
        connections.enter(name)
    assert connections.closed == ["first"]


def test_busiest_address_makes_room() -> None:
    connections = Connections(ConnectionGate(9, strangers_max=3))
    connections.enter("quiet", "b")
    for name in ("first", "second", "third"):
        connections.enter(name)
    assert connections.closed == ["first"]


def test_authenticated_connection_keeps_its_place() -> None:
    gate = ConnectionGate(1, strangers_max=1)
    connections = Connections(gate)
    member = gate.admit_connection("a", lambda: connections.closed.append("member"))
    assert member.mark_authenticated()
    for name in ("first", "second"):
        connections.enter(name)
    late = gate.admit_connection("a", lambda: None)
    assert connections.closed == ["first", "second"] and not late.mark_authenticated(), "as many as there may be"
    member.release_slot()
    member.release_slot()
    assert late.mark_authenticated(), "its place is free, once"
    assert not gate.admit_connection("a", lambda: None).mark_authenticated()


def test_stranger_that_was_closed_has_no_place_to_prove() -> None:
    gate = ConnectionGate(9, strangers_max=1)
    evicted = gate.admit_connection("a", lambda: None)
    gate.admit_connection("a", lambda: None)
    assert not evicted.mark_authenticated()
    evicted.release_slot()
