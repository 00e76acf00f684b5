"""docs/frameworks.md, made from the outcomes that are kept in `outcomes.json`."""

from __future__ import annotations

import json
from pathlib import Path

from frameworks.run import Outcome

HERE = Path(__file__).resolve().parent
OUTCOMES = HERE / "outcomes.json"
PAGE = HERE.parent / "docs" / "frameworks.md"


def kept_outcomes(path: Path = OUTCOMES) -> list[Outcome]:
    """Return the outcomes that were kept, one for each framework and broker."""
    return [Outcome.from_json(values) for values in json.loads(path.read_text(encoding="utf-8"))]


def record_outcomes(outcomes: list[Outcome], path: Path = OUTCOMES) -> None:
    """Keep outcomes, in place of earlier ones of the same framework and broker."""
    kept = {(outcome.framework, outcome.broker): outcome for outcome in (kept_outcomes(path) if path.exists() else [])}
    kept |= {(outcome.framework, outcome.broker): outcome for outcome in outcomes}
    text = json.dumps([outcome.to_json() for outcome in kept.values()], indent=1)
    path.write_text(text + "\n", encoding="utf-8")


def write_page() -> None:
    """Write the page from what was kept."""
    PAGE.write_text(page(kept_outcomes()), encoding="utf-8")


def page(outcomes: list[Outcome]) -> str:
    """The page as the outcomes make it."""
    return ""
