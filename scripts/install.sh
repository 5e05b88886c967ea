#!/bin/sh
# Installs the module and an example configuration that loads it, or removes them: `install.sh [uninstall]`.
#
# PREFIX is where (default: /usr/local), DESTDIR a folder that stands for the root of the file system, for packages. In an
# unpacked release the files lie beside this script; MODULE and CONF name others.
set -eu
umask 022 # whoever installs it: the server's user has to reach it, and nobody else may change it

here=$(cd "$(dirname "$0")" && pwd)
prefix=${PREFIX:-/usr/local}
case $prefix in
    *[!A-Za-z0-9/._+-]*)
        echo "PREFIX is $prefix: the server would not find the module under a name like that." >&2
        exit 2
        ;;
esac
root=${DESTDIR:-}
module=$prefix/lib/redis/modules/libsluice.so
conf=$prefix/share/sluice/redis.conf

remove() {
    rm -f "$root$module" "$root$conf"
    rmdir "$root$prefix/share/sluice" 2>/dev/null || true
    echo "Removed $root$module and $root$conf"
}

put() {
    mkdir -p "$root$(dirname "$module")" "$root$(dirname "$conf")"
    # Under another name first: a server that runs has the old file mapped, and must keep it whole.
    cp "${MODULE:-$here/libsluice.so}" "$root$module.new"
    chmod 755 "$root$module.new"
    mv "$root$module.new" "$root$module"
    sed -E -e "s|^(# )?loadmodule [^ ]+|\1loadmodule $module|" -e 's|^dir .*|dir /var/lib/redis|' "${CONF:-$here/redis.conf}" \
        >"$root$conf"
    chmod 644 "$root$conf"
    echo "Installed $root$module and an example of a configuration, $root$conf,"
    echo "which keeps its data in /var/lib/redis. In the configuration of your server one line loads it: loadmodule $module"
}

case ${1:-} in
    '') put ;;
    uninstall) remove ;;
    *)
        echo "usage: [PREFIX=/usr/local] [DESTDIR=] $0 [uninstall]" >&2
        exit 2
        ;;
esac
