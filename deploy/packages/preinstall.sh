#!/bin/sh
# Makes the user that countd runs as. /etc/countd/countd.yaml belongs to its group.
set -e
# Only this script can distinguish an installation after a removal, which starts countd, from an upgrade: for an
# installation, dpkg passes "install" and rpm passes 1.
case "${1:-}" in install | 1) : >/run/countd.installed ;; esac
if ! getent group countd >/dev/null 2>&1; then
  if command -v groupadd >/dev/null; then groupadd --system countd; else addgroup -S countd; fi
fi
if ! getent passwd countd >/dev/null 2>&1; then
  if command -v useradd >/dev/null; then
    useradd --system --gid countd --home-dir /var/lib/countd --no-create-home --shell /usr/sbin/nologin countd
  else
    adduser -S -D -H -h /var/lib/countd -s /sbin/nologin -G countd countd
  fi
fi
