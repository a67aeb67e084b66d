# Sourced by the scripts of this folder: the build, a clean root, a server in it. `profile` is set by ci/install.
# shellcheck shell=bash

cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
name=${0##*/}
out=$PWD/target/install
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
target=${CARGO_TARGET_DIR:-$PWD/target}
port=7411
work=$(mktemp -d)
server=
mkdir -p "$out"

trap 'finish' EXIT
finish() {
    if [ -n "$server" ]; then
        kill "$server" 2>/dev/null || true
        # A booted root is in use until then.
        wait "$server" || true
    fi
    ! mountpoint -q "$work/root/proc" || umount "$work/root/proc"
    rm -rf "$work"
}

skip() {
    echo "skip: ci/install $name: $*"
    [ -z "${ANNULUS_SKIP_LOG:-}" ] || echo "skip: ci/install $name: $*" >>"$ANNULUS_SKIP_LOG"
}

# Of cargo and maturin.
[ "$profile" = debug ] && options=() || options=(--release)

# [OPTION...]: builds the tool and the library.
build() { cargo build "${options[@]}" --locked -p annulus-cli "$@"; }

# Writes man pages and completions to the folder $work/pages/usr, from the arguments of the tool.
write_pages() {
    ANNULUS_PAGES="$work/pages" cargo test --quiet --locked -p annulus-cli --bin annulus -- --ignored --exact \
        args::tests::the_man_pages_and_completions_are_written
    mkdir -p "$work/pages/usr/share/man/man1"
    for page in "$work"/pages/man/*.1; do
        gzip -9nc "$page" >"$work/pages/usr/share/man/man1/${page##*/}.gz"
    done
}

# PACKAGES: makes a root with Debian packages, separated by commas. Ends the script if that is not possible here.
make_root() {
    if [ "$(id -u)" != 0 ] || ! command -v mmdebstrap >/dev/null; then
        skip "a clean root needs root and the package mmdebstrap"
        exit
    fi
    local release
    release=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
    mmdebstrap --quiet --mode=root --variant=apt --include="$1" "$release" "$work/root"
    mount -t proc proc "$work/root/proc"
}

in_root() { (start_in_root "$@"); }
# For the background: the job is the program itself, which gets the signals.
start_in_root() { exec chroot "$work/root" /usr/bin/env -i HOME=/root PATH="${root_path:-}/usr/sbin:/usr/bin:/sbin:/bin" "$@"; }

# PROFILE: prints the default profile, without the rule for io_uring.
without_first_rule() {
    python3 -c 'import json, sys; profile = json.load(sys.stdin); del profile["syscalls"][0]; print(json.dumps(profile))' \
        <"$1"
}

# TEXT BYTES: sends a line to the server, and prints the first bytes of its reply.
ask() {
    exec 3<>"/dev/tcp/127.0.0.1/$port" && printf '%s\r\n' "$1" >&3 && head -c "$2" <&3
    local code=$?
    exec 3>&-
    return "$code"
}

# TEXT REPLY: waits until the server replies.
await() {
    until [ "$(ask "$1" "${#2}" 2>/dev/null)" = "$2" ]; do
        kill -0 "$server"
        sleep 0.1
    done
}

# Waits for the end of the server, and prints the calls that its ring served, from the file /served of the root.
served() {
    wait
    server=
    if ! grep -o '"served":{"[^}]*}' "$work/root/served"; then
        skip "no io_uring for annulus run in the root"
    fi
}
