#!/usr/bin/env bash
# Installs a Debian package, runs its unit's command as its user, counts, and upgrades and removes the package. All
# this happens in an overlay of this machine's files, which ends with the test. Needs root.
#
#     deploy/packages/test.sh PACKAGE.deb
set -euo pipefail
package=$(realpath "${1:?usage: deploy/packages/test.sh PACKAGE.deb}")
if [ "${COUNTD_TEST_ROOT:-}" = "" ]; then
  for program in dpkg unshare chroot runuser curl python3; do
    command -v $program >/dev/null || { echo "skipped: $program is not installed"; exit 0; }
  done
  [ "$(id -u)" = 0 ] || { echo "skipped: it needs root"; exit 0; }
  scratch=$(mktemp -d)
  trap 'rmdir "$scratch"' EXIT
  unshare --mount --net --pid --fork bash -euc '
    mount -t tmpfs tmpfs "$1"
    mkdir "$1/up" "$1/work" "$1/root"
    mount -t overlay overlay -o "lowerdir=/,upperdir=$1/up,workdir=$1/work" "$1/root"
    mount -t proc proc "$1/root/proc"
    mount -t tmpfs tmpfs "$1/root/run" # without systemd
    mount --rbind /dev "$1/root/dev"
    ip link set lo up
    cp "$3" "$1/root/package.deb"
    cp "$2" "$1/root/test.sh"
    COUNTD_TEST_ROOT=yes chroot "$1/root" bash /test.sh /package.deb
  ' bash "$scratch" "$(realpath "$0")" "$package"
  exit
fi

fail() { echo "FAIL: $*" >&2; exit 1; }

pid=
start() { # as the unit does
  local command
  command=$(sed -n 's/^ExecStart=//p' /usr/lib/systemd/system/countd.service)
  # shellcheck disable=SC2086
  runuser -u countd -- setpriv --no-new-privs --bounding-set=-all $command &
  pid=$!
  ready
}
ready() {
  for _ in $(seq 300); do
    curl -fs 127.0.0.1:7400/readyz >/dev/null && return
    kill -0 $pid 2>/dev/null || fail "countd has ended"
    sleep 0.1
  done
  fail "countd is not ready after 30 s"
}
stop() {
  pkill -TERM -u countd -x countd
  wait $pid || true # runuser returns the status of the signal
}
likes() { countctl -o json get 4467107636950632 | grep -o '"like":[0-9]*'; }

dpkg -i "$package" >/printed
[ "$(stat -c %U:%G:%a /etc/countd/countd.yaml)" = root:countd:640 ] || fail "countd.yaml is $(stat -c %U:%G:%a /etc/countd/countd.yaml)"
[ "$(stat -c %U:%G:%a /var/lib/countd)" = countd:countd:700 ] || fail "/var/lib/countd is $(stat -c %U:%G:%a /var/lib/countd)"
man -w countctl-incr >/dev/null || fail "no man page"
man countd | grep -q 'countctl(1)' || fail "man countd does not name countctl(1)"
man countctl | grep -q 'countd(8)' || fail "man countctl does not name countd(8)"
for file in $(grep -ho '/usr/share/doc/[^ ,]*[a-zA-Z]' /printed /etc/countd/countd.yaml); do
  [ -e "$file" ] || fail "there is no $file"
done

# Run the commands that the installation prints, unchanged.
command=$(sed -n "s/^  \(su .*\)/\1/p" /printed)
[ "$command" != "" ] || fail "the installation does not say how to start countd without systemd"
bash -c "exec $command" &
pid=$!
ready
bash -ec "$(sed -n 's/^Try: //p' /printed)" >/tried || fail "what the installation prints fails: $(cat /tried)"
grep -q '^1  *0  *0  *1  *0$' /tried || fail "what the installation prints does not count: $(cat /tried)"
PYTHONDONTWRITEBYTECODE=1 python3 /usr/share/doc/countd/examples/python/site.py 8000 127.0.0.1:7400 &
site=$!
curl -fsS --retry 20 --retry-connrefused --retry-delay 1 '127.0.0.1:8000/badge?as=7' | grep -q '"posts": *0' || fail "the site in the package does not work"
kill $site
wait $site || true
stop
start
[ "$(ps -o user= -C countd)" = countd ] || fail "it runs as $(ps -o user= -C countd)"
countctl incr 4467107636950632 like=3 >/dev/null
[ "$(likes)" = '"like":3' ] || fail "counted $(likes)"

# The next version has the same files and a higher number. The operator has changed the configuration.
sed -i 's/^redis-addr/# redis-addr/' /etc/countd/countd.yaml
dpkg-deb -R "$package" /next
sed -i 's/^Version: .*/Version: 99.0.0-1/' /next/DEBIAN/control
dpkg-deb -Zgzip -z1 -b /next /next.deb >/dev/null
dpkg -i /next.deb >/dev/null
grep -q '^# redis-addr' /etc/countd/countd.yaml || fail "the upgrade overwrote countd.yaml"
stop
start
[ "$(likes)" = '"like":3' ] || fail "after the upgrade: $(likes)"
stop

dpkg -r countd >/dev/null
[ ! -e /usr/bin/countd ] || fail "a program is left after the removal"
[ -e /var/lib/countd/node.json ] || fail "the removal deleted the data"
[ -e /etc/countd/countd.yaml ] || fail "the removal deleted the configuration"
dpkg -i "$package" >/dev/null
start
[ "$(likes)" = '"like":3' ] || fail "installed again: $(likes)"
stop

# Test with a fake systemd, which records the calls. An installation starts the service, also after a removal. An
# upgrade does not start a service that the operator has stopped, and does not restore files that the operator has
# deleted.
mkdir -p /run/systemd/system /noting
printf '#!/bin/sh\necho "$*" >>/noting/calls\n' >/noting/systemctl
chmod +x /noting/systemctl
export PATH=/noting:$PATH
noted() { # WANT COMMAND …
  : >/noting/calls
  "${@:2}" >/printed || fail "${*:2} failed"
  local calls
  calls=$(grep -v daemon-reload /noting/calls) || true
  [ "$calls" = "$1" ] || fail "${*:2} calls systemctl: $calls"
}
rm /etc/countd/countd.yaml
noted 'try-restart countd.service' dpkg -i /next.deb
[ "$(grep -c /usr/share/doc /printed)" = 0 ] || fail "the upgrade prints what an installation does"
[ ! -e /etc/countd/countd.yaml ] || fail "the upgrade restored countd.yaml"
noted 'disable --now countd.service' dpkg -r countd
noted 'enable --now countd.service' dpkg -i "$package"
grep -q 'countd runs as a service' /printed || fail "the installation prints $(cat /printed)"
noted 'disable --now countd.service' dpkg -P countd
[ -e /var/lib/countd/node.json ] || fail "the purge deleted the data"
noted 'enable --now countd.service' dpkg -i "$package"
[ "$(stat -c %U:%G:%a /etc/countd/countd.yaml)" = root:countd:640 ] || fail "after a purge countd.yaml is $(stat -c %U:%G:%a /etc/countd/countd.yaml)"
echo "ok: $(dpkg-query -W -f '${Package} ${Version}' countd)"
