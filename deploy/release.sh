#!/usr/bin/env bash
# Builds a release into a new directory: archives of the programs for each platform, packages for Debian, Red Hat and
# Alpine, a list of the modules in them, and checksums. The same commit and Go give the same bytes.
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

build() { # DIR
  go build -buildvcs=true -ldflags '-s -w' -o "$1/" ./cmd/countd ./cmd/countctl
}

mkdir -p "$COMMON/man" "$COMMON/completion"
go test -count=1 ./cmd/countd ./cmd/countctl -run '^TestManPages$' -man "$COMMON/man" >/dev/null
gzip -n9 "$COMMON"/man/*
build "$work/host"
for shell in bash fish zsh; do
  "$work/host/countctl" completion "$shell" >"$COMMON/completion/countctl.$shell"
done

for platform in "${platforms[@]}"; do
  export GOOS=${platform%/*} GOARCH=${platform#*/}
  name=countd-$VERSION-$GOOS-$GOARCH
  STAGE=$work/$name
  build "$STAGE"
  tool $cyclonedx bin -json -noserial -output "$out/$name.cdx.json" "$STAGE/countd" 2>"$work/log" || { cat "$work/log" >&2; exit 1; }
  sed -i '/"timestamp":/d' "$out/$name.cdx.json"
  if [ "$GOOS" = linux ]; then
    sed "s|\${ARCH}|$GOARCH|; s|\${VERSION}|$VERSION|; s|\${STAGE}|$STAGE|; s|\${COMMON}|$COMMON|" deploy/packages/nfpm.yaml >"$work/nfpm.yaml"
    for format in deb rpm apk; do
      tool $nfpm package --config "$work/nfpm.yaml" --packager $format --target "$out/" >"$work/log" || { cat "$work/log" >&2; exit 1; }
    done
  fi
  cp -r LICENSE README.md CHANGELOG.md deploy/packages/countd.yaml deploy/packages/countd.service "$COMMON/man" "$COMMON/completion" "$STAGE/"
  tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner --mode='u+rwX,go=rX' --mtime="@$SOURCE_DATE_EPOCH" -cf - "$name" | gzip -n9 >"$out/$name.tar.gz"
done
(cd "$out" && sha256sum -- * >SHA256SUMS)
