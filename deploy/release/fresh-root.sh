#!/bin/bash
# Installs release packages into a fresh root and does what README.md says there: fresh-root.sh PACKAGES [SUITE]
#
# PACKAGES is a folder that build.sh or pack.py has filled. SUITE is a Debian release, bookworm by default; bullseye has the
# older Python and glibc 2.31. The root comes from `debootstrap`, as root, over the network; it is removed afterwards. The
# Debian package is installed by apt and the wheel by pip, each is asked for its version, and the wheel's planforge runs
# every tried command of README.md (readme.py).
set -euo pipefail

packages=$(cd "${1:?fresh-root.sh PACKAGES [SUITE]}" && pwd)
suite=${2:-bookworm}
root=$(cd "$(dirname "$0")/../.." && pwd)
[ "$(id -u)" = 0 ] || { echo "fresh-root.sh: debootstrap needs root" >&2; exit 1; }
command -v debootstrap >/dev/null || { echo "fresh-root.sh: missing: debootstrap" >&2; exit 1; }

fresh=$(mktemp -d)
ended() {
    umount "$fresh/proc" 2>/dev/null || true
    rm -rf --one-file-system "$fresh"
}
trap ended EXIT
debootstrap --variant=minbase --include=ca-certificates,python3,python3-venv,procps "$suite" "$fresh" >/dev/null
mount -t proc proc "$fresh/proc"
mkdir -p "$fresh/home/me/here"
cp -r "$root/examples" "$packages"/*.whl "$packages"/*.deb "$fresh/home/me/here/"
cp "$root/README.md" "$root/deploy/release/readme.py" "$fresh/home/me/"

inside() { chroot "$fresh" env -i HOME=/home/me PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 "$@"; }
inside sh -ec 'cd /home/me/here; apt-get install --yes --quiet --no-install-recommends ./planforge_*.deb; /usr/bin/planforge --version; apt-get remove --yes --quiet planforge'
inside sh -ec 'cd /home/me/here; python3 ../readme.py --readme ../README.md'
echo "fresh-root.sh: $suite: both packages install, and README.md holds"
