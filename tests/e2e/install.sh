#!/bin/sh
# Installs what the tests of whole programs need, on Debian and Ubuntu, as root: containerd 1.7 or
# newer (1.6 has no NRI), runc, a static busybox, a C compiler, tmux, Chromium for pages, three
# shells, readers of manual pages, and a builder of images. What is there already stays as it is;
# elsewhere than on Debian, or without root, nothing is done, and the tests that need it say so and
# are skipped.
set -eu

has_containerd() {
    # "containerd github.com/containerd/containerd 1.7.24~ds1 ..."
    version=$(containerd --version 2>/dev/null | awk '{print $3}')
    case ${version#v} in
    '' | 0.* | 1.[0-6].*) return 1 ;;
    esac
}

missing=
command -v runc >/dev/null || missing="$missing runc"
[ -x /bin/busybox ] && ! ldd /bin/busybox >/dev/null 2>&1 || missing="$missing busybox-static"
command -v cc >/dev/null || missing="$missing gcc libc6-dev"
has_containerd || missing="$missing containerd"
command -v tmux >/dev/null || missing="$missing tmux"
command -v chromium >/dev/null || missing="$missing chromium"
for program in zsh fish mandoc buildah debootstrap; do
    command -v $program >/dev/null || missing="$missing $program"
done
command -v groff >/dev/null || missing="$missing groff-base"
[ -n "$missing" ] || exit 0

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "not installed, needs root and apt-get:$missing" >&2
    exit 0
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
for package in $missing; do
    case $package in
    containerd) ;;
    chromium) # Ubuntu has it as a snap only.
        apt-get install -y -qq --no-install-recommends chromium ||
            echo "chromium is not to be had: the tests of reports are skipped" >&2
        ;;
    *) apt-get install -y -qq --no-install-recommends "$package" ;;
    esac
done
has_containerd && exit 0
candidate=$(apt-cache policy containerd | awk '/Candidate:/ {print $2}')
if dpkg --compare-versions "${candidate:-0}" ge 1.7; then
    apt-get install -y -qq --no-install-recommends containerd
    exit 0
fi
# Debian 12: from the mirror in use, the next release beside this one, which upgrades nothing else.
mirror=$(sed -n 's/^URIs: *//p' /etc/apt/sources.list.d/debian.sources 2>/dev/null | head -n 1)
[ -n "$mirror" ] || mirror=$(awk '$1 == "deb" {
    for (i = 2; i <= NF; i++) if ($i ~ /:\/\//) { print $i; exit }
}' /etc/apt/sources.list)
[ -n "$mirror" ] || {
    echo "containerd is $candidate here, and apt's sources name no mirror for a newer one" >&2
    exit 1
}
cat >/etc/apt/sources.list.d/pinfold-containerd.sources <<END
Types: deb
URIs: $mirror
Suites: trixie
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
END
printf 'Package: *\nPin: release n=trixie\nPin-Priority: 50\n' \
    >/etc/apt/preferences.d/pinfold-containerd
apt-get update -qq
apt-get install -y -qq --no-install-recommends -t trixie containerd
