"""Counts what breaks the rules of docs/style.md that a program can see: `python -m tools.prose [RULE [ROOM]]`.

Without arguments it compares each count with the number that tools/prose_allowed.json still allows for the room, and
fails when one has grown. With a rule it lists the places. `--lower` writes counts that have shrunk into that file.
"""

from __future__ import annotations

import ast
import itertools
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tools.hygiene import ROOT, tracked_files
from tools.sizes import FILE_LINES_MAX

ALLOWED = ROOT / "tools" / "prose_allowed.json"
SENTENCE_WORDS_MAX = 25
SHORT_NAME_LETTERS = 8
SHARED_BY_MAX = 5
CODE = ("src/", "tests/", "simulation/", "bench/", "frameworks/", "tools/", "examples/")
SKIPPED = ("docs/style.md", "tests/test_prose.py", "tools/prose.py")
"""Files that show what is not to be written."""
RULES = {
    "relative": "a docstring or comment begins with Who, What, Whose or That which",
    "pronoun": "a docstring begins with It, Its, These, They, Them or The same",
    "pointer": "a docstring says nothing but See … or As …",
    "long": f"a sentence has more than {SENTENCE_WORDS_MAX} words",
    "loop": "a loop variable is named one or each",
    "private": "a phrase of the private language",
    "class": "a class name stands twice in the package",
    "satellite": "the only importer of a module is its neighbour, and both fit into one file",
    "word": "a name uses a private word for which the field has one",
    "short": f"a function's name is shorter than {SHORT_NAME_LETTERS} letters and shared by more than {SHARED_BY_MAX}",
}
_RELATIVE = re.compile(r"(?:Who|What|Whose|That which|Those who)\b")
_PRONOUN = re.compile(r"(?:It|Its|These|They|Them|The same)\b")
_POINTER = re.compile(r"(?:See|As) [^.]*\.?$")
_PRIVATE = re.compile(
    r"\b(?:no one waits for|is missed at once|is registered no more|goes back as a whole|what was not known to be|"
    r"(?:has|have|had) (?:all|everyone|everybody|others|them|it) (?:go|come|begin|start|wait|stop|read|leave))\b",
    re.IGNORECASE,
)
PRIVATE_WORDS = {
    "belief": "suspicion",
    "brim": "high-water mark",
    "brimful": "high-water mark",
    "door": "coordination service",
    "doors": "coordination services",
    "figures": "metrics",
    "gathering": "deferred notification",
    "handing": "assignment version",
    "knob": "setting",
    "lane": "channel",
    "office": "leader",
    "patience": "timeout, delay or tolerance",
    "patiently": "with retries",
    "rival": "conflicting registration",
    "seat": "session",
    "seats": "sessions",
    "silence": "suspicion",
    "sparingly": "throttled",
    "standstill": "downtime",
    "stood": "paused",
    "switchboard": "server",
    "tell": "log, notify, send or queue",
    "tenure": "term or ownership",
    "tenures": "terms or ownership",
    "told": "what was logged, sent or reported",
    "come_back": "rejoin",
    "comes_back": "rejoins",
    "give_up": "abandon, release or revoke",
    "go_on": "resume or continue",
    "goes_on": "resumes or continues",
    "let_go": "release",
}
"""Private words of this project's past, each with the field's word for it."""
NAMES_OF_OTHERS = {
    "src/kohort/region/files.py:tell": "Python's files have this method",
    "src/kohort/region/sinks/staged_files.py:tell": "pyarrow calls this method of Python's files",
    "tests/region/world/iceberg_disk.py:tell": "pyiceberg calls this method of its writers",
}
"""Names that others have chosen, each with whose they are."""
CHAPTERS_APART = {
    "src/kohort/cluster/coordination/group_round.py": "pure, by a contract of pyproject.toml; its importer is not",
    "src/kohort/cluster/journal/term.py": "the course of one term; its importer is the journal that has many",
    "src/kohort/cluster/other_clients.py": "answers to clients of others, by a table; its importer starts the process",
    "src/kohort/demo/account.py": "what is counted at the end; its importer runs and kills the programs",
    "src/kohort/demo/group_query.py": "a program of its own, which a reader copies",
    "src/kohort/region/control_plane/membership.py": "one of three machines that ask each other by events",
    "src/kohort/region/control_plane/recovery.py": "one of three machines that ask each other by events",
    "src/kohort/spark/values/json_columns.py": "one format of values, as Avro's and Protobuf's files beside it",
}
"""Modules that stay apart from their only importer, each with the reason."""
_NAME_WORD = re.compile(r"[a-z0-9]+|[A-Z][a-z0-9]*")
_COMMENT = re.compile(r"\s*#[!:]?\s?(.*)")
_TABLE_ROW = re.compile(r"^\s*(?:\||-- ).*$", re.MULTILINE)
"""A row of a table, or the heading of a chapter: no sentence."""
_SENTENCE_END = re.compile(r"(?<=[.!?:;])\s+(?=[A-Z`*(])")
_LEFT_OUT = re.compile(r"\s*(?:[|#>]|```|    |<!--|!\[|\d+\. )")


@dataclass(frozen=True, slots=True)
class Fault:
    """One place that breaks a rule.

    Attributes:
        rule: A key of `RULES`.
        path: The file, from the checkout's root.
        line: In it.
        text: What stands there.
    """

    rule: str
    path: str
    line: int
    text: str

    @property
    def room(self) -> str:
        """The folder that the count belongs to: two levels of `src/kohort`, one of the others."""
        parts = self.path.split("/")
        depth = 3 if parts[0] == "src" else 2 if parts[0] == "tests" else 1
        return "/".join(parts[: min(depth, len(parts) - 1)]) or "."


def faults_of_source(path: str, source: str) -> Iterator[Fault]:
    """The faults that one Python file shows by itself."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node)
            if docstring:
                line = node.body[0].lineno
                yield from (Fault(rule, path, line, docstring[:90]) for rule in docstring_rules(docstring))
                yield from long_sentences(path, line, docstring)
        targets = [node.target] if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension) else []
        for name in (part for target in targets for part in ast.walk(target)):
            if isinstance(name, ast.Name) and name.id in ("one", "each"):
                yield Fault("loop", path, name.lineno, f"for {name.id} in …")
    yield from private_names(path, tree)
    for line, text in comments_of(source):
        if _RELATIVE.match(text):
            yield Fault("relative", path, line, text[:90])
        yield from long_sentences(path, line, text)
    for number, text in enumerate(source.split("\n"), 1):
        if found := _PRIVATE.search(text):
            yield Fault("private", path, number, found[0])


def private_names(path: str, tree: ast.Module) -> Iterator[Fault]:
    """The names of a file, its classes, functions, parameters and attributes that use a private word."""
    names = [(part.removesuffix(".py"), 1) for part in path.split("/")]
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.append((node.name, node.lineno))
        elif isinstance(node, ast.arg):
            names.append((node.arg, node.lineno))
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.append((node.attr, node.lineno))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.append((node.target.id, node.lineno))
    for name, line in names:
        if (word := private_word(name)) and f"{path}:{name}" not in NAMES_OF_OTHERS:
            yield Fault("word", path, line, f"{name}: write {PRIVATE_WORDS[word]} for {word}")


def private_word(name: str) -> str:
    """The private word in a name, empty if it has none."""
    words = [word.lower() for word in _NAME_WORD.findall(name)]
    pairs = (f"{first}_{second}" for first, second in itertools.pairwise(words))
    return next((word for word in (*words, *pairs) if word in PRIVATE_WORDS), "")


def docstring_rules(docstring: str) -> Iterator[str]:
    """The rules that a docstring's beginning breaks."""
    if _RELATIVE.match(docstring):
        yield "relative"
    if _PRONOUN.match(docstring):
        yield "pronoun"
    if _POINTER.match(docstring):
        yield "pointer"


def comments_of(source: str) -> Iterator[tuple[int, str]]:
    """Blocks of lines that are comments alone, each as one text with the line where it begins."""
    block: list[str] = []
    for number, line in enumerate([*source.split("\n"), ""], 1):
        if found := _COMMENT.match(line):
            block.append(found[1])
        elif block:
            yield number - len(block), "\n".join(block)
            block = []


def long_sentences(path: str, line: int, text: str) -> Iterator[Fault]:
    """Sentences of running text that are too long; sections, lists and examples of a docstring end a sentence."""
    text = _TABLE_ROW.sub("", text)
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*] |\w+(?: \(\w+\))?: ))", text):
        if paragraph.lstrip().startswith((">>>", "```", "::", "=====")) or paragraph.startswith("    "):
            continue
        for sentence in _SENTENCE_END.split(" ".join(paragraph.split())):
            count = len(sentence.split())
            if count > SENTENCE_WORDS_MAX:
                yield Fault("long", path, line, f"{count} words: {sentence[:80]}")


def faults_of_page(path: str, text: str) -> Iterator[Fault]:
    """The faults of a page: headings, tables and blocks of code are left out."""
    within_code, paragraph, first = False, [""], 1
    for number, row in enumerate([*text.split("\n"), ""], 1):
        if row.lstrip().startswith("```"):
            within_code = not within_code
        if within_code or not row.strip() or _LEFT_OUT.match(row) or row.lstrip().startswith(("- ", "* ")):
            yield from long_sentences(path, first, "\n".join(paragraph))
            is_item = not within_code and row.lstrip().startswith(("- ", "* "))
            paragraph, first = [row.lstrip("-* ") if is_item else ""], number
            continue
        paragraph.append(row)
        if found := _PRIVATE.search(row):
            yield Fault("private", path, number, found[0])


def faults_of_names(trees: dict[str, ast.Module]) -> Iterator[Fault]:
    """Class names and short function names that several definitions share; `trees` are those of the package.

    Methods of a Protocol are left out: each implementation has its names on purpose.
    """
    classes: dict[str, list[tuple[str, int]]] = defaultdict(list)
    functions: dict[str, list[tuple[str, int]]] = defaultdict(list)
    promised: set[str] = set()
    for path, tree in trees.items():
        for node in tree.body:  # a class within another bears its name too: `DescribeProducersResponse.TopicResponse`
            if isinstance(node, ast.ClassDef):
                classes[node.name].append((path, node.lineno))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("__"):
                functions[node.name].append((path, node.lineno))
            if isinstance(node, ast.ClassDef) and any(ast.unparse(base) == "Protocol" for base in node.bases):
                promised |= {method.name for method in node.body if isinstance(method, ast.FunctionDef)}
    for name, places in classes.items():
        yield from (Fault("class", path, line, name) for path, line in places[1:])
    for name, places in functions.items():
        if name not in promised and len(name.strip("_")) < SHORT_NAME_LETTERS and len(places) > SHARED_BY_MAX:
            path, line = places[0]
            yield Fault("short", path, line, f"{name}: {len(places)} definitions")


def faults_of_grain(trees: dict[str, ast.Module]) -> Iterator[Fault]:
    """Modules that one module alone imports, which stands beside them and has room for them.

    A module that is imported in a function, when it is needed, stays apart. So does one of `CHAPTERS_APART`.
    """
    modules = {path.removeprefix("src/").removesuffix(".py").replace("/", "."): path for path in trees}
    importers: dict[str, set[str]] = defaultdict(set)
    at_once: dict[str, set[str]] = defaultdict(set)
    for module, path in modules.items():
        for node in ast.walk(trees[path]):
            if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                continue
            for name in names:
                if name in modules and name != module:
                    importers[name].add(module)
                    if node in trees[path].body:
                        at_once[name].add(module)
    satellites: dict[str, str] = {}
    for module, by in importers.items():
        if len(by) == 1 and by == at_once[module] and not module.endswith(".__init__"):
            (importer,) = by
            beside = importer.rpartition(".")[0] == module.rpartition(".")[0] and not importer.endswith("__init__")
            if beside and _lines(trees[modules[module]]) + _lines(trees[modules[importer]]) <= FILE_LINES_MAX:
                satellites[modules[module]] = f"imported by {importer} alone"
    needless = dict.fromkeys(
        trees.keys() & CHAPTERS_APART.keys() - satellites.keys(), "in CHAPTERS_APART, and no satellite"
    )
    for path, text in sorted((satellites | needless).items()):
        if path in needless or path not in CHAPTERS_APART:
            yield Fault("satellite", path, 1, text)


def _lines(tree: ast.Module) -> int:
    return tree.body[-1].end_lineno or 0 if tree.body else 0


OF_THE_PACKAGE = frozenset({"class", "short", "satellite"})
"""Rules about all files of the package together."""


def all_faults(rules: Iterable[str] = (), rooms: Iterable[str] = ()) -> list[Fault]:
    """The faults of every tracked file; with rules and rooms given, at least those that these ask for."""
    files = [name for name in tracked_files() if name not in SKIPPED]
    if rules and not OF_THE_PACKAGE.intersection(rules):
        files = [name for name in files if not rooms or any(name.startswith((room + "/", room)) for room in rooms)]
    texts = {name: (ROOT / name).read_text() for name in files if name.endswith((".py", ".md"))}
    package = {
        name: ast.parse(text) for name, text in texts.items() if name.startswith("src/") and name.endswith(".py")
    }
    found: list[Fault] = []
    for name, text in texts.items():
        if name.endswith(".md"):
            found += faults_of_page(name, text)
        elif name.startswith(CODE):
            found += faults_of_source(name, text)
    return [*found, *faults_of_names(package), *faults_of_grain(package)]


def counts_of(faults: list[Fault]) -> dict[str, dict[str, int]]:
    """How many faults each rule has in each room."""
    counts = {rule: Counter(fault.room for fault in faults if fault.rule == rule) for rule in RULES}
    return {rule: dict(sorted(by_room.items())) for rule, by_room in counts.items()}


def grown(counts: dict[str, dict[str, int]], allowed: dict[str, dict[str, int]]) -> list[str]:
    """A line for each count that is over what is allowed."""
    return [
        f"{room}: {count} times {RULES[rule]}; {allowed.get(rule, {}).get(room, 0)} are allowed "
        f"(python -m tools.prose {rule} {room} lists them)"
        for rule, by_room in counts.items()
        for room, count in by_room.items()
        if count > allowed.get(rule, {}).get(room, 0)
    ]


def main(arguments: list[str]) -> int:
    """1 if a count has grown."""
    if arguments and arguments[0] in RULES:
        rooms = [room.rstrip("/") for room in arguments[1:]]
        for fault in all_faults(arguments[:1], rooms):
            if fault.rule == arguments[0] and (not rooms or fault.room in rooms):
                print(f"{fault.path}:{fault.line}: {fault.text}")
        return 0
    counts = counts_of(all_faults())
    allowed = json.loads(ALLOWED.read_text()) if ALLOWED.exists() else counts
    if arguments == ["--lower"]:
        lower = {
            rule: {room: min(count, allowed.get(rule, {}).get(room, count)) for room, count in by_room.items()}
            for rule, by_room in counts.items()
        }
        ALLOWED.write_text(json.dumps(lower, indent=1, sort_keys=True) + "\n")
    too_many = grown(counts, allowed)
    print(*too_many, sep="\n", end="\n" if too_many else "")
    totals = ", ".join(f"{rule} {sum(by_room.values())}" for rule, by_room in counts.items())
    print(f"prose: {totals}")
    return 1 if too_many else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
