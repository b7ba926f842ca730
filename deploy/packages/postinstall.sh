#!/bin/sh
# Starts countd after an installation, and starts it anew after an upgrade if it ran.
set -e
[ ! -e /etc/countd/countd.yaml ] || chown root:countd /etc/countd/countd.yaml
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload
  if [ -e /run/countd.installed ]; then systemctl enable --now countd.service; else systemctl try-restart countd.service; fi
fi
rm -f /run/countd.installed
