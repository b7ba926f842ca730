#!/usr/bin/env bash
# Builds a release into a new directory: archives of the programs for each platform, packages for Debian, Red Hat and
# Alpine, a list of the modules in them, packages of the clients for npm and pip, and checksums. The same commit with
# the same versions of Go, npm and Python gives the same bytes.
#
#     deploy/release.sh DIR [GOOS/GOARCH …]
set -euo pipefail
out=$(realpath -m "${1:?usage: deploy/release.sh DIR [GOOS/GOARCH …]}")
shift
cd "$(dirname "$0")/.."
platforms=("$@")
[ $# -gt 0 ] || platforms=(linux/amd64 linux/arm64 darwin/arm64)
nfpm=github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.43.4
cyclonedx=github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.10.0

[ ! -e "$out" ] || { echo "deploy/release.sh: $out exists" >&2; exit 1; }
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
VERSION=$(sed -n 's/^const Version = "\(.*\)"/\1/p' internal/program/version.go)
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
COMMON=$work/common
export SOURCE_DATE_EPOCH GOFLAGS=-trimpath CGO_ENABLED=0

tool() { # runs a program of another module for this machine
  GOFLAGS= GOOS= GOARCH= go run "$@"
}

mkdir -p "$COMMON/man" "$COMMON/completion" "$COMMON/doc"/{docs,clients/js/dist/esm,clients/python/countd}
go test -count=1 ./cmd/countd ./cmd/countctl -run '^TestManPages$' -man "$COMMON/man" >/dev/null
sed -i 's/^\.SH SEE ALSO$/&\n\\fBcountctl(1)\\fP,/' "$COMMON/man/countd.8"
sed -i 's/^\.SH SEE ALSO$/&\n\\fBcountd(8)\\fP,/' "$COMMON/man/countctl.1"
gzip -n9 "$COMMON"/man/*
go build -o "$work/" ./cmd/countctl
for shell in bash fish zsh; do
  "$work/countctl" completion "$shell" >"$COMMON/completion/countctl.$shell"
done

# The names of the clients' packages contain the version, so this fails if a client has another version.
npm pack --silent --pack-destination "$work" ./clients/js >"$work/log" || { cat "$work/log" >&2; exit 1; }
mv "$work/countd-$VERSION.tgz" "$out/countd-js-$VERSION.tgz"
python3 clients/python/build_wheel.py "$out"
[ -e "$out/countd-$VERSION-py3-none-any.whl" ] || { echo "deploy/release.sh: clients/python is not of version $VERSION" >&2; exit 1; }

# Copy the documents, and the sites of docs/GUIDE.md with the clients that they load.
cp README.md CHANGELOG.md "$COMMON/doc/"
cp docs/*.md docs/openapi.yaml "$COMMON/doc/docs/"
cp -r examples "$COMMON/doc/"
rm -rf "$COMMON"/doc/examples/*/__pycache__
cp "$out/countd-js-$VERSION.tgz" "$out/countd-$VERSION-py3-none-any.whl" "$COMMON/doc/clients/"
cp clients/js/README.md clients/js/package.json "$COMMON/doc/clients/js/"
cp clients/js/dist/esm/*.js "$COMMON/doc/clients/js/dist/esm/"
cp clients/python/README.md "$COMMON/doc/clients/python/"
cp clients/python/countd/*.py "$COMMON/doc/clients/python/countd/"
chmod -R u=rwX,go=rX "$COMMON/doc"
find "$COMMON/doc" -exec touch -d "@$SOURCE_DATE_EPOCH" {} + # an apk contains the times of directories

for platform in "${platforms[@]}"; do
  export GOOS=${platform%/*} GOARCH=${platform#*/}
  name=countd-$VERSION-$GOOS-$GOARCH
  STAGE=$work/$name
  go build -buildvcs=true -ldflags '-s -w' -o "$STAGE/" ./cmd/countd ./cmd/countctl
  tool $cyclonedx bin -json -noserial -output "$out/$name.cdx.json" "$STAGE/countd" 2>"$work/log" || { cat "$work/log" >&2; exit 1; }
  sed -i '/"timestamp":/d' "$out/$name.cdx.json"
  if [ "$GOOS" = linux ]; then
    sed "s|\${ARCH}|$GOARCH|; s|\${VERSION}|$VERSION|; s|\${STAGE}|$STAGE|; s|\${COMMON}|$COMMON|" deploy/packages/nfpm.yaml >"$work/nfpm.yaml"
    for format in deb rpm apk; do
      tool $nfpm package --config "$work/nfpm.yaml" --packager $format --target "$out/" >"$work/log" || { cat "$work/log" >&2; exit 1; }
    done
  fi
  cp -r LICENSE "$COMMON"/doc/* deploy/packages/countd.yaml deploy/packages/countd.service "$COMMON/man" "$COMMON/completion" "$STAGE/"
  tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner --mode='u+rwX,go=rX' --mtime="@$SOURCE_DATE_EPOCH" -cf - "$name" | gzip -n9 >"$out/$name.tar.gz"
done
(cd "$out" && sha256sum -- * >SHA256SUMS)
