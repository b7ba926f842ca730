#!/usr/bin/env bash
# Measures a countd cluster of three nodes and one of etcd on this machine. It runs each load RUNS
# times, with the two clusters in turn, and prints Markdown. Needs the built binaries (make build),
# and Go for the etcd program.
#
#   bench/cluster.sh > out.md         RUNS=3 SECONDS_EACH=5 LOG_STORE=shared by default
#
# etcd has no increment, so its load uses compare-and-swap. Both loads use all three nodes. A figure
# is the median of the runs, with the smallest and the largest value. The load generators share the
# machine with the nodes.
set -euo pipefail
cd "$(dirname "$0")/.."
. bench/common.sh

RUNS=${RUNS:-3}
SECONDS_EACH=${SECONDS_EACH:-5}
LOG_STORE=${LOG_STORE:-shared}
dir=$(mktemp -d)
pids=()
trap 'kill -9 "${pids[@]}" 2>/dev/null || true; wait 2>/dev/null; rm -rf "$dir"' EXIT
(cd bench/etcd && go build -o "$dir/etcd" .)

join=127.0.0.1:18102,127.0.0.1:18202,127.0.0.1:18302
for i in 1 2 3; do
  bin/countd --data-dir "$dir/c$i" --node-id "n$i" --http-addr "127.0.0.1:18${i}00" \
    --cluster-addr "127.0.0.1:18${i}01" --gossip-addr "127.0.0.1:18${i}02" --join "$join" \
    --bootstrap-expect 3 --log-store "$LOG_STORE" "${shard_args[@]}" >"$dir/c$i.log" 2>&1 &
  pids+=($!)
done
peers=e1=http://127.0.0.1:18111,e2=http://127.0.0.1:18211,e3=http://127.0.0.1:18311
for i in 1 2 3; do
  "$dir/etcd" serve "e$i" "$dir/e$i" "http://127.0.0.1:18${i}10" "http://127.0.0.1:18${i}11" "$peers" >"$dir/e$i.log" 2>&1 &
  pids+=($!)
done
endpoints=127.0.0.1:18110,127.0.0.1:18210,127.0.0.1:18310
for i in 1 2 3; do
  bin/countctl --addr "http://127.0.0.1:18${i}00" status --wait 60s >/dev/null
done
"$dir/etcd" load "$endpoints" random 10 2s >/dev/null # wait for the first elections

# countd_once CALLERS ARGS…: prints "ops/s p50_us p99_us". The callers are spread over the nodes;
# each latency is the largest of the three nodes.
countd_once() {
  local callers=$1 i jobs=()
  shift
  for i in 1 2 3; do
    bin/countctl --addr "http://127.0.0.1:18${i}00" -o json bench --keyspace posts \
      --duration "${SECONDS_EACH}s" --concurrency $(((callers + i - 1) / 3)) "$@" >"$dir/out$i" &
    jobs+=($!)
  done
  wait "${jobs[@]}"
  for i in 1 2 3; do
    for field in ops_per_second p50 p99; do
      grep -o "\"$field\":[0-9.e+]*" "$dir/out$i" | head -1 | cut -d: -f2 | tr '\n' ' '
    done
    echo
  done | awk '{r += $1; if ($2 > a) a = $2; if ($3 > b) b = $3} END {printf "%.0f %.0f %.0f\n", r, a, b}'
}

etcd_once() { "$dir/etcd" load "$endpoints" "$2" "$1" "${SECONDS_EACH}s"; }

# row NAME OUT…: prints the runs of one load as a line of the table.
row() {
  local name=$1 file=$2
  printf '| %s | %s | %s | %s |\n' "$name" "$(cut -d' ' -f1 "$file" | spread)" \
    "$(cut -d' ' -f2 "$file" | spread)" "$(cut -d' ' -f3 "$file" | spread)"
}

for _ in $(seq "$RUNS"); do
  countd_once 100 --op incr --dist uniform --ids 10000 >>"$dir/random.countd"
  etcd_once 100 random >>"$dir/random.etcd"
  countd_once 100 --op incr --dist hot >>"$dir/hot.countd"
  etcd_once 100 hot >>"$dir/hot.etcd"
  countd_once 100 --op read --dist uniform --ids 10000 --consistency linearizable >>"$dir/read.countd"
  etcd_once 100 read >>"$dir/read.etcd"
  countd_once 100 --op incr --dist uniform --ids 1000000 --batch 100 --no-results >>"$dir/batch.countd"
done
echo "| load | ops/s | p50 µs | p99 µs |"
echo "|---|---|---|---|"
row "countd, increments of 10,000 ids, 100 in flight" "$dir/random.countd"
row "etcd, the same" "$dir/random.etcd"
row "countd, increments of one id, 100 in flight" "$dir/hot.countd"
row "etcd, the same" "$dir/hot.etcd"
row "countd, linearizable reads, 100 in flight" "$dir/read.countd"
row "etcd, the same" "$dir/read.etcd"
row "countd, batches of 100 increments, 100 in flight" "$dir/batch.countd"
