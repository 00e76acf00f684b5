"""Fails when a tracked file has what must not be kept.

A machine's path, a package registry's host, generated code, the marks of a merge, a decision by an error's text.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_HOSTS = (
    "pypi" + ".org",
    "pythonhosted" + ".org",
    "registry." + "npmjs",
    "proxy." + "golang",
    "repo1." + "maven",
    "repo." + "maven",
)
FORBIDDEN = {
    "a path of one machine": re.compile(r"(?<![\w.])/(?:work|root|home/\w+|Users/\w+)/"),
    "the host of a package registry": re.compile("|".join(re.escape(host) for host in _HOSTS)),
    "what a merge left": re.compile(r"^(?:<{7}|>{7}|\|{7})(?: |$)"),
}
BY_TEXT = "# by text: "
"""The start of the comment, with the reason, on a line that may decide by an error's text. Another project's error has
nothing else, or only a log line depends on it."""
_LOOKS = {"startswith", "endswith", "find", "index", "count", "match", "search", "fullmatch", "findall"}
GENERATED = (".so", ".c", ".pyc", ".jar", ".class", ".egg-info")


def tracked_files() -> list[str]:
    """Return every tracked file that still exists."""
    listing = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    return [name for name in listing if name and (ROOT / name).is_file()]


def text_decisions(source: str) -> list[int]:
    """Return the lines on which code decides by an error's text: kohort's own errors carry values for that."""
    lines = source.split("\n")
    found = {line for function in ast.walk(ast.parse(source)) for line in _decisions_of(function)}
    return sorted(line for line in found if BY_TEXT not in lines[line - 1])


def _decisions_of(scope: ast.AST) -> list[int]:
    """Return the decisions of a function or a handler, including nested ones."""
    errors = {"error"} if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef) else set()
    if isinstance(scope, ast.ExceptHandler) and scope.name:
        errors.add(scope.name)
    if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
        given = [*scope.args.posonlyargs, *scope.args.args, *scope.args.kwonlyargs]
        errors |= {arg.arg for arg in given if arg.annotation is not None and _is_error(ast.unparse(arg.annotation))}
    if not errors:
        return []
    texts: set[str] = set()
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign) and _says(node.value, errors, texts):
            texts |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return [node.lineno for node in ast.walk(scope) if _decides(node, errors, texts)]


def _is_error(annotation: str) -> bool:
    return re.search(r"(Error|Exception)\b", annotation) is not None


def _says(node: ast.AST, errors: set[str], texts: set[str]) -> bool:
    """Return whether a value is an error's text, or made of it."""
    match node:
        case ast.Name(id=name):
            return name in texts
        case ast.Call(func=ast.Name(id="str" | "repr"), args=[ast.Name(id=name)]):
            return name in errors
        case ast.Attribute(value=ast.Name(id=name), attr="message" | "args"):
            return name in errors
        case ast.Call(func=ast.Attribute(value=value)) | ast.Subscript(value=value):
            return _says(value, errors, texts)
    return False


def _decides(node: ast.AST, errors: set[str], texts: set[str]) -> bool:
    match node:
        case ast.Compare(left=left, comparators=others):
            return any(_says(operand, errors, texts) for operand in (left, *others))
        case ast.Call(func=ast.Attribute(value=value, attr=attr), args=given) if attr in _LOOKS:
            return any(_says(operand, errors, texts) for operand in (value, *given))
    return False


def complaints(name: str) -> list[str]:
    """Return the faults of one file, one line each."""
    found = []
    if name.endswith(GENERATED):
        found.append(f"{name}: generated files are not kept")
    try:
        text = (ROOT / name).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return found
    for number, line in enumerate(text.split("\n"), start=1):
        found += [f"{name}:{number}: {what}" for what, pattern in FORBIDDEN.items() if pattern.search(line)]
    if name.startswith("src/") and name.endswith(".py"):
        found += [f"{name}:{number}: a decision by an error's text" for number in text_decisions(text)]
    return found


def main() -> int:
    """Print every fault; return 1 if there is one."""
    files = tracked_files()
    found = [line for name in files for line in complaints(name)]
    for line in found:
        print(line)
    print(f"hygiene: {len(files)} files, {len(found)} complaints")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
