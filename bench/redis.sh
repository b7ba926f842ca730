#!/usr/bin/env bash
# Measures countd and redis-server on this machine. It runs each load RUNS times, with the two
# servers in turn, and prints Markdown. Needs redis-server and redis-benchmark (Debian:
# redis-server, redis-tools) and the built binaries (make build).
#
#   bench/redis.sh > out.md           RUNS=3 SECONDS_EACH=5 by default
#
# In Redis a post is a string key, in countd a row. A figure is the median of the runs, with the
# smallest and the largest value. CPU is that of the server process alone. Everything listens on
# loopback and stops at the end.
set -euo pipefail
cd "$(dirname "$0")/.."
. bench/common.sh

RUNS=${RUNS:-3}
SECONDS_EACH=${SECONDS_EACH:-5}
IDS=${IDS:-1000000}
http=17400 redis_always=17379 redis_none=17380
dir=$(mktemp -d)
pids=()
trap 'kill "${pids[@]}" 2>/dev/null || true; wait 2>/dev/null; rm -rf "$dir"' EXIT

bin/countd --data-dir "$dir/countd" --http-addr 127.0.0.1:$http --cluster-addr 127.0.0.1:17401 \
  --gossip-addr 127.0.0.1:17402 "${shard_args[@]}" >"$dir/countd.log" 2>&1 &
countd=$! && pids+=("$countd")
mkdir "$dir/always" "$dir/none"
redis-server --port $redis_always --bind 127.0.0.1 --dir "$dir/always" --save '' \
  --appendonly yes --appendfsync always >"$dir/always.log" 2>&1 &
always=$! && pids+=("$always")
redis-server --port $redis_none --bind 127.0.0.1 --dir "$dir/none" --save '' --appendonly no >"$dir/none.log" 2>&1 &
none=$! && pids+=("$none")
bin/countctl --addr http://127.0.0.1:$http status --wait 20s >/dev/null
until redis-cli -p $redis_always ping >/dev/null 2>&1 && redis-cli -p $redis_none ping >/dev/null 2>&1; do sleep 0.1; done

# countd_once OPS_FIELD ARGS…: prints "ops/s p50_us p99_us cpu_us_per_op".
countd_once() {
  local before after json
  before=$(cpu_ticks "$countd")
  json=$(bin/countctl --addr http://127.0.0.1:$http -o json bench --keyspace posts --duration "${SECONDS_EACH}s" --ids "$IDS" --dist uniform "$@")
  after=$(cpu_ticks "$countd")
  field() { grep -o "\"$1\":[0-9.e+]*" <<<"$json" | head -1 | cut -d: -f2; }
  awk -v r="$(field ops_per_second)" -v n="$(field ops)" -v p50="$(field p50)" -v p99="$(field p99)" \
    -v t=$((after - before)) 'BEGIN {printf "%.0f %.0f %.0f %.2f\n", r, p50, p99, t * 10000 / n}'
}

# redis_once PORT PID OPS_PER_COMMAND ARGS…: prints the same figures for redis-benchmark. It chooses
# a number of commands that takes about SECONDS_EACH.
redis_once() {
  local port=$1 pid=$2 per=$3 before after csv probe n
  shift 3
  probe=$(redis-benchmark -p "$port" -r "$IDS" --csv -n 20000 "$@" | tail -1 | cut -d, -f2 | tr -d '"')
  n=$(awk -v r="$probe" -v s="$SECONDS_EACH" 'BEGIN {printf "%d", r * s + 1000}')
  before=$(cpu_ticks "$pid")
  csv=$(redis-benchmark -p "$port" -r "$IDS" --csv --precision 3 -n "$n" "$@" | tail -1 | tr -d '"')
  after=$(cpu_ticks "$pid")
  # csv: test, rps, avg, min, p50, p95, p99, max in milliseconds
  awk -F, -v per="$per" -v n="$n" -v t=$((after - before)) \
    '{printf "%.0f %.0f %.0f %.2f\n", $(NF-6) * per, $(NF-3) * 1000, $(NF-1) * 1000, t * 10000 / (n * per)}' <<<"$csv"
}

row() { # row LABEL FILE
  local c out="| $1 |"
  for c in 1 2 3 4; do out+=" $(awk -v c=$c '{print $c}' "$2" | spread) |"; done
  echo "$out"
}

# compare TITLE OPS_PER_COMMAND "countctl args" "redis-benchmark args"
compare() {
  local title=$1 per=$2 ours=$3 theirs=$4 i
  rm -f "$dir"/*.runs
  for ((i = 0; i < RUNS; i++)); do
    # shellcheck disable=SC2086 # the arguments are lists
    {
      countd_once $ours >>"$dir/countd.runs"
      redis_once $redis_always "$always" "$per" $theirs >>"$dir/always.runs"
      redis_once $redis_none "$none" "$per" $theirs >>"$dir/none.runs"
    }
  done
  echo
  echo "**$title**"
  echo
  echo "| server | ops/s | p50 µs | p99 µs | server CPU µs/op |"
  echo "|---|---|---|---|---|"
  row "countd (always synced)" "$dir/countd.runs"
  row "Redis, appendfsync always" "$dir/always.runs"
  row "Redis, no persistence" "$dir/none.runs"
}

echo "$(date -u +%F), $(nproc) cores, $(awk -F': ' '/model name/ {print $2; exit}' /proc/cpuinfo), $(redis-server --version | cut -d' ' -f3), ${RUNS} runs of ${SECONDS_EACH} s"
# MSET through redis-benchmark would set only one key, so pages read the keys that INCR has made.
compare "increments of one id, 1 in flight" 1 "--op incr --concurrency 1" "-c 1 incr post:__rand_int__"
compare "increments of one id, 64 in flight" 1 "--op incr --concurrency 64" "-c 64 incr post:__rand_int__"
compare "increments of one id, 1,024 in flight" 1 "--op incr --concurrency 1024" "-c 1024 incr post:__rand_int__"
compare "increments of one hot id, 64 in flight" 1 "--op incr --concurrency 64 --dist hot" "-c 64 incr post:1"
compare "increments 100 at a time (Redis: pipelines of 100), 16 in flight" 1 \
  "--op incr --batch 100 --concurrency 16" "-c 16 -P 100 incr post:__rand_int__"
mget="mget" && for ((i = 0; i < 20; i++)); do mget+=" post:__rand_int__"; done
compare "pages of 20 posts (Redis: MGET of 20 keys, one count each; countd: four), 64 in flight" 20 \
  "--op page --page 20 --concurrency 64" "-c 64 $mget"
