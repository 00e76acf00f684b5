#!/bin/sh
# Makes .venv hold the pinned packages and this project, and does nothing when it already does.
# Usage: tools/setup.sh demo|dev|inputs. "dev" has everything; "demo" has what `kohort demo` needs; "inputs" lists the
# files whose change builds the kernels anew, and does nothing else.
# Each finished step leaves a stamp in .venv with the checksum of what it was made from.
set -eu
cd "$(dirname "$0")/.."

set=${1:?demo or dev}
python=${PYTHON:-python3}
venv=.venv
bin=$venv/bin

sum_of() {
    cat "$@" | cksum
}

done_before() { # STAMP FILE...: was this step done for these very files?
    stamp=$venv/.stamp-$1
    shift
    [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$(sum_of "$@")" ]
}

mark_done() {
    stamp=$venv/.stamp-$1
    shift
    sum_of "$@" >"$stamp"
}

say() {
    printf '» %s\n' "$1" >&2
}

build_inputs() { # every file that decides what is built; README.md only gets into the package's description
    ls setup.py pyproject.toml MANIFEST.in src/kohort/columns/*.pyx src/kohort/columns/*.pxd \
        src/kohort/columns/*.pxi src/kohort/columns/*.h src/kohort/wire/*.pyx src/kohort/wire/*.pxd \
        src/kohort/client/producer/*.pyx src/kohort/journal/*.pyx 2>/dev/null || true
}

if [ "${1:-}" = inputs ]; then
    build_inputs
    exit
fi

PYTHON=$python sh tools/preflight.sh python cc

if ! [ -x "$bin/python" ] || ! "$bin/python" -c '' 2>/dev/null; then
    say "new environment in $venv"
    rm -rf "$venv"
    "$python" -m venv "$venv"
fi
if ! done_before uv requirements/uv.txt; then
    say "installing uv"
    "$bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/uv.txt
    mark_done uv requirements/uv.txt
fi

VIRTUAL_ENV=$PWD/$venv
export VIRTUAL_ENV
fresh=no
if done_before dev requirements/dev.txt; then
    : # everything is there, which includes what the demo needs
elif [ "$set" = dev ]; then
    say "installing the pinned packages (PySpark alone is 400 MB: the first time takes minutes)"
    "$bin/uv" pip install --quiet --require-hashes -r requirements/dev.txt
    mark_done dev requirements/dev.txt
    fresh=yes
elif ! done_before demo requirements/demo.txt; then
    say "installing the demo's pinned packages (PySpark alone is 400 MB: the first time takes minutes)"
    "$bin/uv" pip install --quiet --require-hashes -r requirements/demo.txt
    mark_done demo requirements/demo.txt
    fresh=yes
fi

# shellcheck disable=SC2046  # the list of inputs is words without blanks
if [ $fresh = yes ] || ! done_before built $(build_inputs); then
    say "building and installing kohort (editable)"
    "$bin/uv" pip install --quiet --no-build-isolation --no-deps --reinstall-package kohort --editable .
    mark_done built $(build_inputs)
fi
