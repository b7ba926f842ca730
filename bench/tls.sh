#!/usr/bin/env bash
# Measures the processor time of countd per request: without TLS, with TLS, and with
# --auth enforce and a token without TLS, in turn. Prints Markdown. Needs the built binaries
# (make build).
#
#   bench/tls.sh > out.md          ROUNDS=3 SECONDS_EACH=6 CONNECTIONS=16
#
# One node with connections that stay open. "handshakes" closes the connection after each request.
# So it includes the cost of a new connection with TLS and an ECDSA P-256 certificate.
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
head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' >"$dir/root-token"
chmod 600 "$dir/root-token"

start() { # MODE
  local args=()
  scheme=http
  case $1 in
  tls) scheme=https args=(--tls-cert "$dir/certs/n1.crt" --tls-key "$dir/certs/n1.key") ;;
  token) args=(--auth enforce --root-token-file "$dir/root-token") ;;
  esac
  rm -rf "$dir/data"
  bin/countd --data-dir "$dir/data" --http-addr "127.0.0.1:$PORT" --cluster-addr "127.0.0.1:$((PORT + 1))" \
    --gossip-addr "127.0.0.1:$((PORT + 2))" "${shard_args[@]}" "${args[@]}" >>"$dir/log" 2>&1 &
  pids+=($!)
  unset COUNTCTL_TOKEN
  ctl --token-file "$dir/root-token" status --wait 60s >/dev/null
  if [ "$1" = token ]; then # measure a user's token, because the check of a root token is shorter
    ctl --token-file "$dir/root-token" user create bench --grant writer:posts --grant metrics >/dev/null
    COUNTCTL_TOKEN=$(ctl --token-file "$dir/root-token" token create bench)
    export COUNTCTL_TOKEN
  fi
}
ctl() { COUNTCTL_CA="$dir/certs/ca.crt" bin/countctl --timeout 30s --addr "$scheme://127.0.0.1:$PORT" "$@"; }
field() { grep -o "\"$1\":[^,}]*" | head -1 | cut -d: -f2 | tr -d ' '; }
per() { awk -v a="$1" -v b="$2" -v n="$3" -v hz="$(getconf CLK_TCK)" 'BEGIN {printf "%.1f\n", (b - a) * 1e6 / hz / n}'; }

for _ in $(seq "$ROUNDS"); do
  for mode in plain tls token; do
    start "$mode"
    pid=${pids[0]}
    for op in read incr; do
      was=$(cpu_ticks "$pid")
      requests=$(ctl --yes -o json bench --op "$op" --keyspace posts --concurrency "$CONNECTIONS" --ids 100000 --dist uniform --duration "${SECONDS_EACH}s" | tr -d '\n\t' | sed 's/: /:/g' | field requests)
      per "$was" "$(cpu_ticks "$pid")" "$requests" >>"$dir/$mode-$op"
    done
    was=$(cpu_ticks "$pid")
    # shellcheck disable=SC2046 # one option for each URL
    curl -s --cacert "$dir/certs/ca.crt" -H 'Connection: close' -H "Authorization: Bearer ${COUNTCTL_TOKEN:-}" $(yes -- "$scheme://127.0.0.1:$PORT/readyz" | head -n "$HANDSHAKES" | sed 's/$/ -o \/dev\/null/')
    per "$was" "$(cpu_ticks "$pid")" "$HANDSHAKES" >>"$dir/$mode-handshakes"
    stop
  done
done
echo "| µs of processor time of countd | plain | TLS | a token |"
echo "|---|---|---|---|"
for op in read incr handshakes; do
  echo "| $op | $(spread <"$dir/plain-$op") | $(spread <"$dir/tls-$op") | $(spread <"$dir/token-$op") |"
done
