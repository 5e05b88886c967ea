# shellcheck shell=bash
# Functions of the scripts that install packages on Debian and Ubuntu.

as_root() {
    if [[ $EUID -eq 0 ]]; then "$@"; else sudo "$@"; fi
}

# Whether this script can install packages.
has_apt() {
    command -v apt-get >/dev/null && { [[ $EUID -eq 0 ]] || command -v sudo >/dev/null; }
}

apt_get() {
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=120 "$@"
}

# Installs packages. $@: their names.
apt_install() {
    has_apt || return 1
    apt_get update || true # an incomplete update of the package list can be enough
    apt_get install --no-install-recommends -y "$@"
}
