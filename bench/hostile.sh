#!/usr/bin/env bash
# Measures how hostile connections slow a caller down: the latency of reads and increments with a
# token at a fixed rate, alone and beside hostile connections, in turn. Prints Markdown. Needs the
# built binaries (make build) and go.
#
#   bench/hostile.sh > out.md      ROUNDS=3 SECONDS_EACH=8 RATE=500 TLS=yes|no OPS="read incr"
#
# The hostile program sends 10,000 wrong tokens a second. It holds 400 connections that send a byte
# of their TLS handshake (without TLS: of their request) every half second, and 400 that send
# nothing. It runs in a session of its own on the same machine.
set -euo pipefail
cd "$(dirname "$0")/.."
. bench/common.sh
ROUNDS=${ROUNDS:-3}
SECONDS_EACH=${SECONDS_EACH:-8}
RATE=${RATE:-500}
TLS=${TLS:-yes}
PORT=${PORT:-14930}
OPS=${OPS:-read incr}
use_scratch
(cd bench/hostile && go build -o "$dir/hostile" .)
bin/countctl cert create-ca --dir "$dir/certs" >/dev/null
bin/countctl cert node n1 --dir "$dir/certs" >/dev/null
(umask 077 && head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' >"$dir/root-token")
scheme=http args=() hostile=()
[ "$TLS" = no ] || scheme=https args=(--tls-cert "$dir/certs/n1.crt" --tls-key "$dir/certs/n1.key") hostile=(-tls)
ctl() { COUNTCTL_CA="$dir/certs/ca.crt" bin/countctl --timeout 30s --addr "$scheme://127.0.0.1:$PORT" "$@"; }
field() { grep -o "\"$1\":[^,}]*" | head -1 | cut -d: -f2 | tr -d ' '; }

bin/countd --data-dir "$dir/data" --http-addr "127.0.0.1:$PORT" --cluster-addr "127.0.0.1:$((PORT + 1))" \
  --gossip-addr "127.0.0.1:$((PORT + 2))" "${shard_args[@]}" "${args[@]}" --auth enforce --root-token-file "$dir/root-token" >>"$dir/log" 2>&1 &
pids+=($!)
ctl --token-file "$dir/root-token" status --wait 60s >/dev/null
ctl --token-file "$dir/root-token" user create bench --grant writer:posts --grant metrics >/dev/null
ctl --token-file "$dir/root-token" token create bench >"$dir/token"

# once NAME OP: appends p50 and p99 in ms to files in the scratch directory.
once() {
  local was
  was=$(cpu_ticks "${pids[0]}")
  ctl --token-file "$dir/token" --yes -o json bench --op "$2" --keyspace posts --concurrency 16 --rate "$RATE" --ids 100000 --dist uniform --duration "${SECONDS_EACH}s" |
    tr -d '\n\t' | sed 's/: /:/g' >"$dir/out"
  awk -v a="$was" -v b="$(cpu_ticks "${pids[0]}")" -v hz="$(getconf CLK_TCK)" -v s="$SECONDS_EACH" 'BEGIN {printf "%.2f\n", (b - a) / hz / s}' >>"$dir/$1-$2-cpu"
  failed=$(field failed <"$dir/out")
  [ "$failed" = 0 ] || echo "$1 $2: $failed failed" >&2
  for p in p50 p99; do grep -o '"latency_us":{[^}]*}' "$dir/out" | field "$p" | awk '{printf "%.2f\n", $1 / 1000}' >>"$dir/$1-$2-$p"; done
}

for op in $OPS; do
  once warm "$op"
  for _ in $(seq "$ROUNDS"); do
    once alone "$op"
    setsid -w "$dir/hostile" -addr "127.0.0.1:$PORT" "${hostile[@]}" -bad 10000 -slow 400 -half 400 -for "$((SECONDS_EACH + 3))s" >"$dir/hostile.out" &
    beside=$!
    sleep 1
    once beside "$op"
    wait "$beside"
    cut -d' ' -f1 "$dir/hostile.out" >>"$dir/rate"
  done
done
echo "| latency in ms | p50 alone | p50 beside | p99 alone | p99 beside | cores of countd alone | beside |"
echo "|---|---|---|---|---|---|---|"
for op in $OPS; do
  echo "| $op | $(spread <"$dir/alone-$op-p50") | $(spread <"$dir/beside-$op-p50") | $(spread <"$dir/alone-$op-p99") | $(spread <"$dir/beside-$op-p99") | $(spread <"$dir/alone-$op-cpu") | $(spread <"$dir/beside-$op-cpu") |"
done
echo
echo "Wrong tokens refused a second: $(spread <"$dir/rate")"
