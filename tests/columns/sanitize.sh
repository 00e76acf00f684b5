#!/bin/sh
# Builds the kernels with the address and undefined-behaviour sanitizers beside the tree and runs their tests on them.
# Usage: tests/columns/sanitize.sh [PYTEST ARGUMENTS]; PYTHON names the interpreter, .venv/bin/python by default.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
python=$(cd "$root" && command -v "${PYTHON:-.venv/bin/python}" | sed "s,^\([^/]\),$root/\1,")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -R "$root/src" "$root/setup.py" "$root/pyproject.toml" "$work"
cp -R "$root/tests" "$work"
find "$work/src" -name '*.so' -o -name '*.c' | xargs rm -f
cd "$work"
KOHORT_SANITIZE=address,undefined "$python" setup.py -q build_ext --inplace
# Python itself leaks at exit, by design, and lives in memory the sanitizer did not see.
LD_PRELOAD="$(cc -print-file-name=libasan.so):$(cc -print-file-name=libubsan.so)" \
    ASAN_OPTIONS=detect_leaks=0 PYTHONMALLOC=malloc PYTHONPATH=src KOHORT_EXAMPLES="${KOHORT_EXAMPLES:-300}" \
    "$python" -m pytest -p no:cacheprovider --timeout 1800 tests/columns tests/journal/test_sealing.py \
    tests/wire/test_record_walk.py tests/client/test_appender.py "$@"
