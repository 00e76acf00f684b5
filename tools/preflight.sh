#!/bin/sh
# Says what this machine lacks, and how to get it. Usage: tools/preflight.sh NEED... (python, java, cc, git)
# Works before anything is installed; `kohort doctor` says more once the package is there.
missing=0

lack() {
    printf 'missing: %s\n   get it: %s\n' "$1" "$2" >&2
    missing=1
}

warn() {
    printf 'note: %s\n' "$1" >&2
}

python_version_ok() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

java_version() {
    # Spark and Kafka take JAVA_HOME before PATH, so we do the same.
    java=${JAVA_HOME:+$JAVA_HOME/bin/java}
    java=${java:-java}
    "$java" -version 2>&1 | sed -n 's/.*version "\([0-9][0-9]*\).*/\1/p' | head -n 1
}

for need in "$@"; do
    case $need in
    python)
        python=${PYTHON:-python3}
        if ! command -v "$python" >/dev/null 2>&1 || ! python_version_ok "$python"; then
            lack "Python 3.11 or newer (as $python)" \
                "apt install python3 python3-venv, brew install python@3.12, or: make PYTHON=/path/to/python3.11 …"
        elif ! "$python" -c 'import venv, ensurepip' >/dev/null 2>&1; then
            lack "Python's venv module" "apt install python3-venv"
        fi
        ;;
    java)
        version=$(java_version)
        if [ -z "$version" ] || [ "$version" -lt 17 ]; then
            lack "Java 17 or newer (found: ${version:-none})" \
                "apt install openjdk-17-jre-headless, brew install openjdk@17, or set JAVA_HOME"
        fi
        ;;
    cc)
        if ! command -v "${CC:-cc}" >/dev/null 2>&1; then
            warn "no C compiler (${CC:-cc}): decoding runs in plain Python, many times slower; apt install gcc python3-dev, or xcode-select --install"
        fi
        ;;
    git)
        command -v git >/dev/null 2>&1 || lack "git" "apt install git, or brew install git"
        ;;
    esac
done
exit $missing
