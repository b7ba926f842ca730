#!/bin/sh
# Starts countd after an installation. After an upgrade, restarts countd if it was running. After an installation, it
# also prints the state of countd and first commands to try.
set -e
install -d -o countd -g countd -m 0700 /var/lib/countd
[ ! -e /etc/countd/countd.yaml ] || chown root:countd /etc/countd/countd.yaml
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload
  if [ -e /run/countd.installed ]; then systemctl enable --now countd.service; else systemctl try-restart countd.service; fi
fi
if [ -e /run/countd.installed ]; then
  if [ -d /run/systemd/system ]; then
    echo "countd runs as a service: HTTP on 127.0.0.1:7400, Redis on 127.0.0.1:7403, settings in /etc/countd/countd.yaml."
  else
    echo "countd is installed. It does not run, because systemd does not. Start it with:"
    echo "  su -s /bin/sh -c 'countd --config /etc/countd/countd.yaml' countd"
  fi
  echo "Try: countctl status; countctl incr 1 like=1; countctl get 1"
  echo "Read: /usr/share/doc/countd/README.md, and man countd"
fi
rm -f /run/countd.installed
