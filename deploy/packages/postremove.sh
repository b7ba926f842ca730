#!/bin/sh
# The data in /var/lib/countd and the user stay: a database's files are the operator's to delete.
set -e
if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
