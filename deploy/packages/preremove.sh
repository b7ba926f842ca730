#!/bin/sh
# Stops countd when the package is removed, but not when it is upgraded. rpm passes 0 for a removal.
set -e
case "${1:-remove}" in
  remove | deconfigure | 0)
    if [ -d /run/systemd/system ]; then systemctl disable --now countd.service; fi
    ;;
esac
