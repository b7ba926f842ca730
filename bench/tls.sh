#!/usr/bin/env bash
# Measures the processor time of countd per request with TLS and without it, in turn, and
# prints Markdown. Needs the built binaries (make build).
#
#   bench/tls.sh > out.md          ROUNDS=3 SECONDS_EACH=6 CONNECTIONS=16
#
# One node with connections that stay open. "handshakes" closes the connection after each
# request: its cost is that of a new connection with TLS, with a certificate of ECDSA P-256.
set -euo pipefail
cd "$(dirname "$0")/.."
. bench/common.sh
ROUNDS=${ROUNDS:-3}
SECONDS_EACH=${SECONDS_EACH:-6}
HANDSHAKES=${HANDSHAKES:-1000}
CONNECTIONS=${CONNECTIONS:-16}
PORT=${PORT:-14910}
use_scratch
bin/countctl cert create-ca --dir "$dir/certs" >/dev/null
bin/countctl cert node n1 --dir "$dir/certs" >/dev/null

start() { # SCHEME
  local tls=()
  [ "$1" = http ] || tls=(--tls-cert "$dir/certs/n1.crt" --tls-key "$dir/certs/n1.key")
  rm -rf "$dir/data"
  bin/countd --data-dir "$dir/data" --http-addr "127.0.0.1:$PORT" --cluster-addr "127.0.0.1:$((PORT + 1))" \
    --gossip-addr "127.0.0.1:$((PORT + 2))" "${shard_args[@]}" "${tls[@]}" >>"$dir/log" 2>&1 &
  pids+=($!)
  ctl "$1" status --wait 60s >/dev/null
}
ctl() { local scheme=$1; shift; COUNTCTL_CA="$dir/certs/ca.crt" bin/countctl --addr "$scheme://127.0.0.1:$PORT" "$@"; }
field() { grep -o "\"$1\":[^,}]*" | head -1 | cut -d: -f2 | tr -d ' '; }
per() { awk -v a="$1" -v b="$2" -v n="$3" -v hz="$(getconf CLK_TCK)" 'BEGIN {printf "%.1f\n", (b - a) * 1e6 / hz / n}'; }

for _ in $(seq "$ROUNDS"); do
  for scheme in http https; do
    start "$scheme"
    pid=${pids[0]}
    for op in read incr; do
      was=$(cpu_ticks "$pid")
      requests=$(ctl "$scheme" --yes -o json bench --op "$op" --keyspace posts --concurrency "$CONNECTIONS" --ids 100000 --dist uniform --duration "${SECONDS_EACH}s" | tr -d '\n\t' | sed 's/: /:/g' | field requests)
      per "$was" "$(cpu_ticks "$pid")" "$requests" >>"$dir/$scheme-$op"
    done
    was=$(cpu_ticks "$pid")
    # shellcheck disable=SC2046 # one option for each URL
    curl -s --cacert "$dir/certs/ca.crt" -H 'Connection: close' -o /dev/null $(yes -- "$scheme://127.0.0.1:$PORT/healthz" | head -n "$HANDSHAKES" | sed 's/$/ -o \/dev\/null/')
    per "$was" "$(cpu_ticks "$pid")" "$HANDSHAKES" >>"$dir/$scheme-handshakes"
    stop
  done
done
echo "| µs of processor time of countd | plain | TLS |"
echo "|---|---|---|"
for op in read incr handshakes; do
  echo "| $op | $(spread <"$dir/http-$op") | $(spread <"$dir/https-$op") |"
done
