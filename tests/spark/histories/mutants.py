"""Faults to plant."""


def plant(name: str) -> None:
    del name
