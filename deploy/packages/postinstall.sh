#!/bin/sh
# Starts countd after an installation, and starts it anew after an upgrade if it ran.
set -e
chown root:countd /etc/countd/countd.yaml
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload
  case "$1:$2" in
    configure: | 1:*) systemctl enable --now countd.service ;;
    *) systemctl try-restart countd.service ;;
  esac
fi
