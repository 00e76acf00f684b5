"""Writes docs/errors.md from the docstrings of the public errors and from the codes: `python -m tools.error_docs`.

The first paragraph of a docstring is the cause, and the one that begins with "Remedy:" what to do. `kohort explain`
prints the same texts.
"""

from __future__ import annotations

import re
from pathlib import Path

import kohort
import kohort.region
from kohort.cli.explain import CODE_REMEDIES, cause_and_remedy, public_errors
from kohort.errors import ErrorCode, KafkaError, error_for

PAGE = Path(__file__).resolve().parent.parent / "docs" / "errors.md"
HEAD = """<!-- Written by tools/error_docs.py from the docstrings of the errors: change those, then run `make docs`. -->

# Errors

Every error that the package raises for its callers is a `KafkaError`. The class says what a caller can do. `error.code`
is Kafka's code, and `error.message` says what happened. A text ends with the code's name in brackets where that says
more, as `[GROUP_ID_NOT_FOUND]`. `error.name_on_page` is that name, or the class's.

Each class and each code has an anchor, as `errors.md#timedouterror`. Without this page, `kohort explain` says the same:

```sh
kohort explain GROUP_ID_NOT_FOUND
```
"""
CODES = """
## Codes

Kafka's codes in 4.4. A code stands for the class beside it. "Retry" is Kafka's word on whether a repetition may help.
Where "what to do" is empty, the remedy of the class counts.

| code | number | retry | class | meaning | what to do |
|---|---|---|---|---|---|
"""


def _home(kind: type[KafkaError]) -> str:
    for module in (kohort, kohort.region):
        if kind.__name__ in module.__all__:
            return module.__name__
    return kind.__module__


def _section(kind: type[KafkaError], codes: list[ErrorCode]) -> str:
    cause, remedy = cause_and_remedy(kind)
    base = kind.__bases__[0].__name__
    lines = [f"## {kind.__name__}", "", cause, "", "| | |", "|---|---|"]
    lines.append(f"| import | `from {_home(kind)} import {kind.__name__}` |")
    if kind is not KafkaError:
        lines.append(f"| is a | [{base}](#{base.lower()}) |")
    if codes:
        lines.append(f"| codes | {', '.join(f'`{code.name}`' for code in codes)} |")
    return "\n".join([*lines, f"| remedy | {remedy} |", ""])


def _code_remedy(code: ErrorCode) -> str:
    text = CODE_REMEDIES.get(code, "")
    return re.sub(r"docs/([\w-]+\.md)", r"[\1](\1)", text)


def page() -> str:
    """Return the page."""
    kinds = {code: type(error_for(code)) for code in ErrorCode if code is not ErrorCode.NONE}
    sections = [
        _section(kind, [code for code, its in kinds.items() if its is kind] if kind is not KafkaError else [])
        for kind in public_errors()
    ]
    rows = [
        f'| <a id="{code.name.lower()}"></a>`{code.name}` | {int(code)} | {"yes" if code.retriable else "no"} | '
        f"[{kind.__name__}](#{kind.__name__.lower()}) | {code.text} | {_code_remedy(code)} |"
        for code, kind in sorted(kinds.items())
    ]
    return HEAD + "\n" + "\n".join(sections) + CODES + "\n".join(rows) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
