"""The fenced blocks of a page, and how a reader would run each.

A comment before a fence, which readers do not see, says what the language can't: `<!-- snippet: WORD: TEXT -->`, where
WORD is

- `not run`: TEXT is the reason.
- `stays`: the command runs on during the rest of the page. It is up when it has printed a line that begins with TEXT.
- `prints`: the block is what the one before printed, lines in any order.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
RUN = ("python", "sh")
"""Languages of blocks that are run unless a comment says otherwise."""
SHOWN = ("console", "mermaid")
"""Languages of blocks that are never run: how a command is called, a diagram."""
WORDS = ("not run", "stays", "prints")
_BLOCK = re.compile(
    r"^(?:<!-- snippet: (?P<word>[a-z ]+)(?:: (?P<text>[^>]+?))? -->\n+)?^```(?P<language>[a-z]*)\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Snippet:
    """One fenced block.

    Attributes:
        place: the page and the line of the fence.
        word: of the comment; "" without one.
        text: of the comment.
    """

    place: str
    language: str
    code: str
    word: str = ""
    text: str = ""

    @property
    def is_test(self) -> bool:
        """Whether it is a file for pytest."""
        return self.language == "python" and re.search(r"^(?:async )?def test_", self.code, re.MULTILINE) is not None

    @property
    def is_spark(self) -> bool:
        """Whether it is a program that starts Spark and ends by itself."""
        return self.language == "python" and "SparkSession.builder" in self.code and not (self.is_test or self.word)


def snippets(page: Path) -> list[Snippet]:
    """The blocks of a page in their order.

    Raises:
        ValueError: a block of a language that has no rule, a comment that is not understood or stands before no block.
    """
    text = page.read_text(encoding="utf-8")
    found = []
    for match in _BLOCK.finditer(text):
        line = text[: match.start("language")].count("\n") + 1
        place = f"{page.relative_to(ROOT)}:{line}"
        word, said = match["word"] or "", match["text"] or ""
        if word and (word not in WORDS or (word != "prints" and not said)):
            raise ValueError(f"{place}: the comment before it is not understood: {word}: {said}")
        if not word and match["language"] not in (*RUN, *SHOWN):
            raise ValueError(f"{place}: a block of language {match['language']!r} has no rule: say `not run` and why")
        found.append(Snippet(place, match["language"], match["code"], word, said))
    comments, fences = text.count("<!-- snippet: "), len(re.findall(r"^```", text, re.MULTILINE))
    if comments != sum(bool(snippet.word) for snippet in found) or fences != 2 * len(found):
        raise ValueError(f"{page.relative_to(ROOT)}: a comment or a fence belongs to no block")
    return found
