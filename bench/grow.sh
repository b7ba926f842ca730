#!/usr/bin/env bash
# Measures the growth of one large shard of three nodes from 1 to BY shards under increments, and
# prints Markdown. Needs the built binaries (make build). 30 million rows need about 4 GB.
#
#   bench/grow.sh > out.md          ROWS=30000000 RATE=1000 BY=3 LOAD=170
#
# RATE increments a second go to random rows, one in a request. Latencies count from the time at which
# a request was due, so the longest one shows how long writes paused. Memory is the anonymous memory
# of a node: the most of the three.
set -euo pipefail
cd "$(dirname "$0")/.."
. bench/common.sh

ROWS=${ROWS:-30000000}
RATE=${RATE:-1000}
BY=${BY:-3}
QUIET=${QUIET:-20}
LOAD=${LOAD:-$((ROWS / 200000 + 20))} # seconds, longer than the growth
base=17700
use_scratch
urls=()
for n in 1 2 3; do
  p=$((base + 10 * n))
  bin/countd --data-dir "$dir/n$n" --node-id "n$n" --log-level warn --bootstrap-expect 3 --auto-grow off "${shard_args[@]}" \
    --join "127.0.0.1:$((base + 12)),127.0.0.1:$((base + 22)),127.0.0.1:$((base + 32))" \
    --http-addr 127.0.0.1:$p --cluster-addr 127.0.0.1:$((p + 1)) --gossip-addr 127.0.0.1:$((p + 2)) >"$dir/n$n.log" 2>&1 &
  pids+=($!)
  urls+=("http://127.0.0.1:$p")
done
ctl() { bin/countctl --addr "$(IFS=,; echo "${urls[*]}")" "$@"; }
ctl status --wait 60s >/dev/null
ctl keyspace create clips --columns repost,comment,like,view >/dev/null
echo "$(date +%T) $ROWS rows" >&2
awk -v n="$ROWS" -v OFS=, 'BEGIN { print "id", "repost", "comment", "like", "view"; for (i = 1; i <= n; i++) print i, i % 3, i % 7, i % 300, i % 50000 }' >"$dir/rows.csv"
ctl import "$dir/rows.csv" --keyspace clips --yes >/dev/null
rm "$dir/rows.csv"
at_rest "${pids[@]}"
steady "${pids[0]}"

# load SECONDS FILE: increments for so long.
load() {
  ctl bench --yes --op incr --keyspace clips --column like --dist uniform --ids "$ROWS" --rate "$RATE" --duration "$1s" -o json >"$2"
}
# most: prints the most anonymous memory of a node.
most() { for p in "${pids[@]:0:3}"; do anon_bytes "$p"; done | sort -n | tail -1; }
# latency FILE PERCENTILE: in milliseconds.
latency() { python3 -c 'import json,sys; print("%.1f ms" % (json.load(open(sys.argv[1]))["latency_us"][sys.argv[2]] / 1000))' "$1" "$2"; }

load "$QUIET" "$dir/quiet.json"
before=$(most)
(while sleep 0.2; do most; done >"$dir/memory") &
pids+=($!)
began=$(date +%s.%N)
load "$LOAD" "$dir/during.json" &
loading=$!
ctl keyspace grow clips --by "$BY" --yes --wait 10m >&2
ended=$(date +%s.%N)
while ! wait "$loading"; do echo "a request failed" >&2 && exit 1; done
[ "$(awk -v b="$began" -v e="$ended" -v l="$LOAD" 'BEGIN {print (e - b < l)}')" = 1 ] || { echo "the load ended before the growth: set LOAD" >&2; exit 1; }
at_rest "${pids[@]:0:3}"
steady "${pids[0]}"
after=$(most)
peak=$(sort -n "$dir/memory" | tail -1)

echo "$(date -u +%F), $(nproc) cores, $(awk -F': ' '/model name/ {print $2; exit}' /proc/cpuinfo), $ROWS rows, $RATE increments/s"
echo
echo "| | quiet | while 1 shard becomes $BY |"
echo "|---|---|---|"
for f in p50 p99 max; do echo "| $f | $(latency "$dir/quiet.json" $f) | $(latency "$dir/during.json" $f) |"; done
awk -v b="$before" -v p="$peak" -v a="$after" 'BEGIN {printf "| memory of a node | %.0f MB | at most %.2f ×, afterwards %.2f × |\n", b / 1e6, p / b, a / b}'
awk -v b="$began" -v e="$ended" 'BEGIN {printf "| time until it has grown | | %.1f s |\n", e - b}'
