#!/bin/sh
# Puts etcd, kube-apiserver, kube-controller-manager and kube-scheduler into a folder, for the tests
# beside this file: ./build.sh FOLDER. On Debian 12, whose source package of Kubernetes is the whole
# of it (1.20.2; later ones have the client only). It is fetched by apt, from where apt is configured
# to fetch, verified by apt, and built in FOLDER: ten minutes to half an hour, 6 GB. What is there
# already is not built again. What has to be installed for that is, where this is root.
set -eu
folder=${1:?the folder to build in}
programs="kube-apiserver kube-controller-manager kube-scheduler"
needed="golang-1.19-go golang-github-modern-go-reflect2-dev etcd-server etcd-client dpkg-dev make gcc libc6-dev rsync"

is_built() {
    for program in etcd etcdctl $programs; do
        [ -x "$folder/bin/$program" ] || return 1
    done
}
is_built && exit 0

. /etc/os-release
if [ "${VERSION_CODENAME:-}" != bookworm ]; then
    echo "this builds on Debian 12 (bookworm) only; elsewhere have KUBEBUILDER_ASSETS name a folder" \
        "with etcd, etcdctl, $programs" >&2
    exit 1
fi
missing=
for package in $needed; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q "ok installed" || missing="$missing $package"
done
if [ -n "$missing" ]; then
    if [ "$(id -u)" != 0 ]; then
        echo "as root: apt-get install$missing" >&2
        exit 1
    fi
    apt-get update -qq
    # A server that is installed is started: not this one.
    RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing
fi

mkdir -p "$folder/bin" "$folder/apt/lists/partial" "$folder/apt/archives/partial" "$folder/source"
folder=$(cd "$folder" && pwd)
# The places that apt has packages from, as places of sources; the machine's own lists stay as they are.
keys=/usr/share/keyrings/debian-archive-keyring.gpg
apt-get indextargets --format "deb-src [signed-by=$keys] \$(REPO_URI) \$(CODENAME) \$(COMPONENT)" \
    'Identifier: Packages' 'Codename: bookworm' | sort -u >"$folder/apt/sources.list"
own="-o Dir::Etc::SourceList=$folder/apt/sources.list -o Dir::Etc::SourceParts=/dev/null
    -o Dir::State::Lists=$folder/apt/lists -o Dir::Cache=$folder/apt -o APT::Sandbox::User=$(id -un)"
apt-get $own update -qq
(cd "$folder/source" && apt-get $own source -qq --download-only kubernetes)

path=$folder/gopath/src/k8s.io/kubernetes
rm -rf "$folder/gopath"
mkdir -p "$path"
tar -xzf "$folder"/source/kubernetes_*.orig.tar.gz -C "$path" --strip-components=1
# With that of the source, which is older than the compiler, an API server dies of the first custom
# resource.
rm -rf "$path/vendor/github.com/modern-go/reflect2"
cp -R /usr/share/gocode/src/github.com/modern-go/reflect2 "$path/vendor/github.com/modern-go/"
version=v$(ls "$folder"/source/kubernetes_*.dsc | sed -n 's/.*really\([0-9.]*\)-.*/\1/p')
minor=${version#v1.}
# The source has no history to ask for its version.
cat >"$folder/version" <<END
KUBE_GIT_COMMIT='0000000000000000000000000000000000000000'
KUBE_GIT_TREE_STATE='archive'
KUBE_GIT_VERSION='$version'
KUBE_GIT_MAJOR='1'
KUBE_GIT_MINOR='${minor%%.*}'
END
export GOPATH="$folder/gopath" GOCACHE="$folder/cache" GOPROXY=off GO111MODULE=off
export PATH="/usr/lib/go-1.19/bin:$PATH" KUBE_GIT_VERSION_FILE="$folder/version"
make -C "$path" WHAT="$(printf 'cmd/%s ' $programs)"
for program in $programs; do
    cp "$path/_output/bin/$program" "$folder/bin/"
done
ln -sf /usr/bin/etcd /usr/bin/etcdctl "$folder/bin/"
rm -rf "$folder/gopath" "$folder/cache"
is_built
