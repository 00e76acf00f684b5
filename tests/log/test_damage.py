"""Messages about damaged bytes in a log file."""

import pickle
from pathlib import Path

import pytest

from kohort.errors import CorruptDataError, ErrorCode
from kohort.log.damage import DamagedError, LogDamage

FILE = Path("/data/orders-3/00000000000000000500.log")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (
            LogDamage(FILE, 1200, 300, 510, 520, "a batch length of -1"),
            (
                "orders-3/00000000000000000500.log is damaged at byte 1200 (300 bytes): a batch length of -1; "
                "offsets 510 to 519 can't be read, the next readable one is 520"
            ),
        ),
        (
            LogDamage(FILE, 1200, None, 510, 511, "magic 7"),
            (
                "orders-3/00000000000000000500.log is damaged at byte 1200: magic 7; "
                "offset 510 can't be read, the next readable one is 511"
            ),
        ),
        (
            LogDamage(FILE, 0, None, 510, None, "magic 7"),
            "orders-3/00000000000000000500.log is damaged at byte 0: magic 7; offsets from 510 on can't be read",
        ),
        (
            LogDamage(FILE, 0, 8, 510, 510, "8 bytes of nothing"),
            "orders-3/00000000000000000500.log is damaged at byte 0 (8 bytes): 8 bytes of nothing; no offset is lost",
        ),
    ],
)
def test_damage_says_where_it_is_and_what_is_lost(damage, said):
    assert damage.describe() == said


def test_the_error_carries_the_damage_across_processes():
    error = DamagedError(LogDamage(FILE, 1200, 300, 510, 520, "a batch length of -1"))
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, CorruptDataError)
    assert again.damage == error.damage
    assert again.code is ErrorCode.CORRUPT_MESSAGE
    assert str(again) == str(error)
