#!/usr/bin/env bash
# Sets up this clone: a virtual environment with the locked dependencies, and Java. With --tests also versitygw, the S3
# server of the log's tests, and an archive of Spark's classes. Ends quickly when all of it exists.
set -euo pipefail
cd "$(dirname "$0")/.."

VERSITYGW_VERSION=v1.8.0
STAMP=.venv/.holdfast-setup

say() { echo "set-up: $*" >&2; }
give_up() { say "$*"; exit 1; }

# --- the system's packages -------------------------------------------------------------------------------------------

# Installs the first of the named packages that the system's package manager has. Needs root.
install_package() {
    [ "$(id -u)" = 0 ] || return 1
    local package
    if command -v apt-get >/dev/null; then
        apt-get update -qq >&2 || true
        for package in "$@"; do
            DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package" >&2 && return 0
        done
    elif command -v dnf >/dev/null; then
        for package in "$@"; do dnf install -y -q "$package" >&2 && return 0; done
    elif command -v zypper >/dev/null; then
        for package in "$@"; do zypper --non-interactive --quiet install "$package" >&2 && return 0; done
    fi
    return 1
}

# --- Python ----------------------------------------------------------------------------------------------------------

is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

find_python() {
    local candidate
    for candidate in ${PYTHON:-} python3 python3.14 python3.13 python3.12 python3.11 python; do
        if command -v "$candidate" >/dev/null && is_new_enough "$candidate"; then
            echo "$candidate"
            return 0
        fi
    done
    return 1
}

make_environment() {
    local python
    python=$(find_python) || give_up "Python 3.11 or newer is needed and none was found. Install it, or name it: PYTHON=/path/to/python3.11 make ..."
    if [ -x .venv/bin/python ] && is_new_enough .venv/bin/python && .venv/bin/python -m pip --version >/dev/null 2>&1; then
        return 0
    fi
    rm -rf .venv
    if ! "$python" -c 'import ensurepip' 2>/dev/null; then
        local version
        version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
        install_package "python$version-venv" python3-venv \
            || give_up "$python can't make virtual environments. Install its venv package as root (Debian, Ubuntu: apt-get install python$version-venv) and run this again."
    fi
    say "making .venv with $("$python" --version)"
    "$python" -m venv .venv
}

install_dependencies() {
    say "installing the releases in requirements.lock (some minutes the first time)"
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --requirement requirements.lock
    # The build backend is among the locked dependencies, so pip fetches no other one.
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
}

# --- Java ------------------------------------------------------------------------------------------------------------

java_version() {
    local java=java
    [ -n "${JAVA_HOME:-}" ] && java="$JAVA_HOME/bin/java"
    "$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1
}

ensure_java() {
    local found
    found=$(java_version || true)
    [ "${found:-0}" -ge 17 ] && return 0
    if [ -n "${JAVA_HOME:-}" ]; then
        give_up "Spark needs Java 17 or newer, and JAVA_HOME=$JAVA_HOME is ${found:-none}. Set it to a newer one, or unset it."
    fi
    say "Java 17 is missing (found: ${found:-none}); installing it"
    install_package openjdk-17-jre-headless java-17-openjdk-headless openjdk-21-jre-headless java-21-openjdk-headless || true
    found=$(java_version || true)
    [ "${found:-0}" -ge 17 ] || give_up "Spark needs Java 17 or 21 and it can't be installed from here. As root: apt-get install openjdk-17-jre-headless (Debian, Ubuntu) or dnf install java-17-openjdk-headless (Fedora)."
}

# --- the tests' S3 server --------------------------------------------------------------------------------------------

ensure_versitygw() {
    local target=.tools/bin/versitygw
    [ -x "${HOLDFAST_VERSITYGW:-$target}" ] && return 0
    if ! command -v go >/dev/null; then
        say "Go is missing, so versitygw can't be built and the S3 tests will be skipped."
        return 0
    fi
    mkdir -p .tools/bin
    local built
    built=$(go env GOPATH)/bin/versitygw
    if [ -x "$built" ] && go version -m "$built" | grep "versitygw[[:space:]]$VERSITYGW_VERSION[[:space:]]" >/dev/null; then
        ln -sf "$built" "$target"
        return 0
    fi
    say "building versitygw $VERSITYGW_VERSION, the S3 server of the tests (some minutes, once)"
    if ! GOBIN="$PWD/.tools/bin" GOFLAGS="${GOFLAGS:-} -modcacherw" \
        go install "github.com/versity/versitygw/cmd/versitygw@$VERSITYGW_VERSION" >.tools/versitygw.log 2>&1; then
        say "versitygw could not be built, so the S3 tests will be skipped. The reason ends with:"
        tail -n 3 .tools/versitygw.log >&2
    fi
}

# --- the tests' JVMs -------------------------------------------------------------------------------------------------

# An archive of Spark's classes halves the time in which each of the tests' JVMs starts. It belongs to one release of
# Java and to the installed dependencies.
ensure_class_archive() {
    local archive=.tools/spark.jsa made_for
    made_for="$(fingerprint) $("${JAVA_HOME:+$JAVA_HOME/bin/}java" -version 2>&1 | cksum)"
    [ -e "$archive" ] && [ "$(cat "$archive.for" 2>/dev/null || true)" = "$made_for" ] && return 0
    say "archiving Spark's classes for the tests (half a minute, once)"
    if .venv/bin/python -m tests.class_archive >.tools/class_archive.log 2>&1; then
        echo "$made_for" >"$archive.for"
    else
        rm -f "$archive"
        say "Spark's classes could not be archived, so tests start more slowly. The reason ends with:"
        tail -n 3 .tools/class_archive.log >&2
    fi
}

# --- main ------------------------------------------------------------------------------------------------------------

# Includes the folder: the environment of a moved clone has wrong paths.
fingerprint() { { pwd; cat requirements.lock pyproject.toml; } | cksum; }

# Two terminals may run this at the same time.
mkdir -p .tools
if command -v flock >/dev/null; then
    exec 9>.tools/setup.lock
    flock 9
fi

if [ "$(cat "$STAMP" 2>/dev/null || true)" != "$(fingerprint)" ] || [ ! -x .venv/bin/python ]; then
    make_environment
    install_dependencies
    fingerprint >"$STAMP"
fi
ensure_java
if [ "${1:-}" = --tests ]; then
    ensure_versitygw
    ensure_class_archive
fi
