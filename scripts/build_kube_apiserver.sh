#!/bin/sh
# Builds Kubernetes' API server from Debian's source package, and unpacks etcd, for tests/deploy/test_api_server.py.
#
# usage: build_kube_apiserver.sh [FOLDER]        default: build/kubernetes
#
# For Debian: needs its apt, 3 GB of disk and about five minutes of one core, and installs nothing. It is Kubernetes 1.20,
# the last whose source Debian has with all of its parts. A later one takes a download where there is a network: put etcd
# and https://dl.k8s.io/v1.33.0/bin/linux/amd64/kube-apiserver, or what setup-envtest brings, into a folder, and name it
# in KUBEBUILDER_ASSETS.
set -eu

folder=${1:-build/kubernetes}
mkdir -p "$folder/bin"
cd "$folder"
folder=$PWD
source=$folder/go/src/k8s.io/kubernetes
mkdir -p apt/lists/partial apt/archives/partial root cache "$source"

# Lists of its own: the machine's apt may have those of another release, and mostly has none of sources.
mirror=${DEBIAN_MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' 'Origin: Debian' 'Created-By: Packages' | head -n 1)}
[ -n "$mirror" ] || { echo "DEBIAN_MIRROR has to name a mirror of Debian's" >&2; exit 1; }
options="[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror bookworm main"
printf 'deb %s\ndeb-src %s\n' "$options" "$options" >apt/sources.list
cat >apt/apt.conf <<END
Dir::Etc::sourcelist "$folder/apt/sources.list";
Dir::Etc::sourceparts "-";
Dir::State::lists "$folder/apt/lists";
Dir::Cache "$folder/apt";
Acquire::Languages "none";
APT::Sandbox::User "";
END
export APT_CONFIG="$folder/apt/apt.conf"
apt-get -qq update
apt-get -qq download etcd-server golang-1.19-go golang-1.19-src golang-github-modern-go-reflect2-dev
apt-get -qq source --download-only kubernetes
for package in *.deb; do dpkg-deb --extract "$package" root; done
tar -xzf kubernetes_*.orig.tar.gz --strip-components=1 -C "$source"
cp root/usr/bin/etcd bin/

# Kubernetes' copy of reflect2 iterates over maps as Go did before 1.18.
rm -r "$source/vendor/github.com/modern-go/reflect2"
cp -r root/usr/share/gocode/src/github.com/modern-go/reflect2 "$source/vendor/github.com/modern-go/"

cd "$source"
export GOROOT="$folder/root/usr/lib/go-1.19" GOPATH="$folder/go" GOCACHE="$folder/cache" CGO_ENABLED=0
# As Debian does: today's Go finds that release's go.mod incomplete.
export GO111MODULE=off
# Compilers take up to 4 GB of memory so, and a fifth less time.
export GOGC=800
PATH=$GOROOT/bin:$PATH

# What the server's schemas are made of, by which it finds unknown fields, is not among the sources.
go build -p "${JOBS:-1}" -gcflags=all=-dwarf=false -ldflags "-s -w" -o "$folder/openapi-gen" ./vendor/k8s.io/kube-openapi/cmd/openapi-gen
kinds=$(cd vendor && grep -rl '^// +k8s:openapi-gen=true' --include=*.go k8s.io/api/*/*/ k8s.io/apimachinery/pkg/*/ \
    k8s.io/apiextensions-apiserver/pkg/apis/ k8s.io/apiserver/pkg/apis/audit/ k8s.io/kube-aggregator/pkg/apis/ |
    xargs -n 1 dirname | grep -v testapigroup | sort -u | sed 's|^|k8s.io/kubernetes/vendor/|' | paste -s -d ,)
"$folder/openapi-gen" -i "$kinds" -p k8s.io/kubernetes/pkg/generated/openapi -O zz_generated.openapi \
    -h vendor/k8s.io/code-generator/hack/boilerplate.go.txt -r "$folder/violations"

flags="-s -w"
for package in component-base/version client-go/pkg/version; do
    name=k8s.io/kubernetes/vendor/k8s.io/$package
    flags="$flags -X $name.gitMajor=1 -X $name.gitMinor=20 -X $name.gitVersion=v1.20.2"
done
# Without the clouds' own code, which takes longer than all the rest.
go build -p "${JOBS:-1}" -tags providerless -gcflags=all=-dwarf=false \
    -ldflags "$flags" -o "$folder/bin/kube-apiserver" ./cmd/kube-apiserver
cd "$folder"
rm -r apt cache root go openapi-gen violations ./*.deb kubernetes_*
ls -l bin
