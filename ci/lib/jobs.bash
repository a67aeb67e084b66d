# Sourced by ci/test and ci/long: packages, time limits, logs, and the summary of skipped tests.
# shellcheck shell=bash

# The library's test binaries that AddressSanitizer runs in ci/test, beside the unit tests: random operations.
# shellcheck disable=SC2034
sanitized=(fsx stress)

[ "$(id -u)" = 0 ] && command -v apt-get >/dev/null && may_install=1 || may_install=

# Installs the named Debian packages if one is missing and this is a build machine (CI=true, root, apt).
install_packages() {
    if [ "${CI:-false}" != true ] || [ -z "$may_install" ] || dpkg-query -W "$@" >/dev/null 2>&1; then
        return
    fi
    { apt-get update -qq &&
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null; } ||
        echo "${0#./}: cannot install the packages $*; the tests that need them are skipped" >&2
}

# SCRIPT FOLDER: checks for a C linker and cargo, and creates the log of skipped tests in the folder.
prepare() {
    if ! command -v cc >/dev/null; then
        if [ -z "$may_install" ]; then
            echo "ci/$1: no C linker; install the packages gcc and libc6-dev" >&2
            exit 77
        fi
        CI=true install_packages gcc libc6-dev
    fi
    if ! command -v cargo >/dev/null; then
        echo "ci/$1: no cargo; install Rust from https://rustup.rs with rustfmt and clippy" >&2
        exit 77
    fi
    if [ "${CI:-false}" = true ]; then
        export ANNULUS_SKIPS_FAIL="${ANNULUS_SKIPS_FAIL:-1}"
        # A build machine compiles each clone once, so incremental compilation only costs time.
        export CARGO_INCREMENTAL="${CARGO_INCREMENTAL:-0}"
    fi
    mkdir -p "$2"
    export ANNULUS_SKIP_LOG="$PWD/$2/skips.log"
    : >"$ANNULUS_SKIP_LOG"
}

# Prints the skipped tests. Returns 1 if a test was skipped and skips are failures.
summary() {
    if [ ! -s "$ANNULUS_SKIP_LOG" ]; then
        echo "== nothing skipped"
        return
    fi
    echo "== $(wc -l <"$ANNULUS_SKIP_LOG") skipped:"
    sort "$ANNULUS_SKIP_LOG" | uniq -c
    if [ "${ANNULUS_SKIPS_FAIL:-0}" = 1 ]; then
        echo "== a skip is a failure here (ANNULUS_SKIPS_FAIL=1)" >&2
        return 1
    fi
}
