#!/usr/bin/env bash
# Measures countd's Redis port and redis-server with redis-benchmark on this machine. It runs each
# load RUNS times, with the two servers in turn, and prints Markdown. bench/respload measures three
# nodes, and Redis with replicas. Needs redis-server and redis-tools (Debian), Go and the built
# binaries (make build).
#
#   bench/redisfront.sh > out.md      RUNS=3 SECONDS_EACH=4 ROWS=5000000 STORE=shared SHARDS=1 by default
#   SETS="one reads three" chooses parts: one node's writes, reads, three nodes
#
# Redis stores a post's likes as a string and its four counts as a hash; countd stores them in one
# row. A figure is the median of the runs, with the smallest and the largest value. CPU is the sum
# over the server processes, in µs per command. Everything listens on loopback and stops at the end.
set -euo pipefail
cd "$(dirname "$0")/.."
. bench/common.sh

RUNS=${RUNS:-3}
SECONDS_EACH=${SECONDS_EACH:-4}
ROWS=${ROWS:-5000000}
STORE=${STORE:-shared}
SETS=${SETS:-one reads three}
CONNS=50
base=17600
use_scratch
(cd bench/respload && go build -o "$dir/respload" .)

# countd_node NUMBER ARGS…: starts a node and sets countd_pid. Its ports begin at base + 10 ×
# NUMBER.
countd_node() {
  local n=$1 p=$((base + 10 * $1))
  shift
  bin/countd --data-dir "$dir/countd$n" --log-level warn --log-store "$STORE" "${shard_args[@]}" \
    --http-addr 127.0.0.1:$p --cluster-addr 127.0.0.1:$((p + 1)) --gossip-addr 127.0.0.1:$((p + 2)) --redis-addr 127.0.0.1:$((p + 3)) \
    "$@" >"$dir/countd$n.log" 2>&1 &
  countd_pid=$!
  pids+=("$countd_pid")
}

# redis_node NAME PORT ARGS…: starts a redis-server and sets redis_pid.
redis_node() {
  local name=$1 port=$2
  shift 2
  mkdir -p "$dir/$name"
  redis-server --port "$port" --bind 127.0.0.1 --dir "$dir/$name" --save '' "$@" >"$dir/$name.log" 2>&1 &
  redis_pid=$!
  pids+=("$redis_pid")
  until redis-cli -p "$port" ping >/dev/null 2>&1; do sleep 0.1; done
}

# fill PORT STRINGS: makes the rows. If STRINGS is 1, it also makes the strings.
fill() {
  local port=$1 also=$2
  awk -v rows="$ROWS" -v also="$also" 'function bulk(s) { return "$" length(s) "\r\n" s "\r\n" }
    BEGIN { for (i = 0; i < rows; i++) {
      id = sprintf("%012d", i)
      printf "*10\r\n%s%s%s", bulk("HSET"), bulk("posts:" id), bulk("repost") bulk("1") bulk("comment") bulk(i % 7 + 1) bulk("like") bulk(i % 300 + 1) bulk("view") bulk(i % 50000 + 1)
      if (also) printf "*3\r\n%s%s%s", bulk("SET"), bulk("posts:" id ":like"), bulk(i % 300 + 1)
    } }' | redis-cli -p "$port" --pipe >/dev/null
}

# once PORT DEPTH "PIDS" COMMAND…: prints "commands/s p50_ms p99_ms cpu_us".
once() {
  local port=$1 depth=$2 servers=$3 probe n before after csv
  shift 3
  probe=$(redis-benchmark -p "$port" -r "$ROWS" -c $CONNS -P "$depth" --csv -n $((2000 * (depth + 4))) "$@" | tail -1 | cut -d, -f2 | tr -d '"')
  n=$(awk -v r="$probe" -v s="$SECONDS_EACH" -v unit=$((CONNS * depth)) 'BEGIN {printf "%d", (int(r * s / unit) + 1) * unit}')
  # shellcheck disable=SC2086 # the servers are a list
  before=$(cpu_ticks $servers)
  csv=$(redis-benchmark -p "$port" -r "$ROWS" -c $CONNS -P "$depth" --csv --precision 3 -n "$n" "$@" | tail -1 | tr -d '"')
  # shellcheck disable=SC2086
  after=$(cpu_ticks $servers)
  # csv: test, rps, avg, min, p50, p95, p99, max in milliseconds
  awk -F, -v n="$n" -v t=$((after - before)) '{printf "%.0f %.3f %.3f %.2f\n", $(NF-6), $(NF-3), $(NF-1), t * 10000 / n}' <<<"$csv"
}

# load_once ADDRS DEPTH "PIDS" ARGS…: prints the same figures for bench/respload, which can send
# WAIT.
load_once() {
  local addrs=$1 depth=$2 servers=$3 n rate p50 p99 before after
  shift 3
  # shellcheck disable=SC2086 # the servers are a list
  before=$(cpu_ticks $servers)
  read -r n rate p50 p99 < <("$dir/respload" -addrs "$addrs" -conns $CONNS -depth "$depth" -rows "$ROWS" -for "${SECONDS_EACH}s" "$@")
  # shellcheck disable=SC2086
  after=$(cpu_ticks $servers)
  awk -v r="$rate" -v a="$p50" -v b="$p99" -v n="$n" -v t=$((after - before)) 'BEGIN {printf "%s %s %s %.2f\n", r, a, b, t * 10000 / n}'
}

row() { # row LABEL FILE
  local c out="| $1 |"
  for c in 1 2 3 4; do out+=" $(awk -v c=$c '{print $c}' "$2" | spread) |"; done
  echo "$out"
}

# compare TITLE DEPTH COMMAND…: runs a load on the servers in the arrays names, ports and servers.
compare() {
  local title=$1 depth=$2 i s
  shift 2
  rm -f "$dir"/*.runs
  for ((i = 0; i < RUNS; i++)); do
    for s in "${!names[@]}"; do once "${ports[$s]}" "$depth" "${servers[$s]}" "$@" >>"$dir/$s.runs"; done
  done
  printf '\n**%s, -P %s**\n\n| server | commands/s | p50 ms | p99 ms | server CPU µs |\n|---|---|---|---|---|\n' "$title" "$depth"
  for s in "${!names[@]}"; do row "${names[$s]}" "$dir/$s.runs"; done
}

mget=(mget) && for ((i = 0; i < 20; i++)); do mget+=(posts:__rand_int__:like); done
# writes TITLE…: runs the loads that write, on the same servers. reads runs those that read.
writes() {
  local depth
  for depth in 1 16 100; do
    compare "INCR" $depth incr posts:__rand_int__:like
    compare "HINCRBY" $depth hincrby posts:__rand_int__ like 1
  done
}
reads() {
  local depth
  for depth in 1 16 100; do
    compare "GET" $depth get posts:__rand_int__:like
    compare "HMGET of 4" $depth hmget posts:__rand_int__ repost comment like view
    compare "MGET of 20" $depth "${mget[@]}"
  done
}

echo "$(date -u +%F), $(nproc) cores, $(awk -F': ' '/model name/ {print $2; exit}' /proc/cpuinfo), $(redis-server --version | cut -d' ' -f3), ${ROWS} rows, ${RUNS} runs of ${SECONDS_EACH} s, --log-store ${STORE}, --shards posts=${SHARDS}, load before $(cut -d' ' -f1 /proc/loadavg)"

if [[ $SETS == *one* || $SETS == *reads* ]]; then
  countd_node 0
  bin/countctl --addr http://127.0.0.1:$base status --wait 20s >/dev/null
  fill $((base + 3)) 0
  names=("countd, one node") ports=($((base + 3))) servers=("$countd_pid")
  redis_node none 17690 --appendonly no
  fill 17690 1
  names+=("Redis, no persistence") ports+=(17690) servers+=("$redis_pid")
  at_rest "${servers[@]}"
  if [[ $SETS == *reads* ]]; then reads; fi
  if [[ $SETS == *one* ]]; then
    # Fill Redis before it syncs each command.
    port=17691
    for fsync in everysec always; do
      redis_node $fsync $port --appendonly yes --appendfsync no --auto-aof-rewrite-percentage 0
      fill $port 1
      redis-cli -p $port config set appendfsync $fsync >/dev/null
      names+=("Redis, appendfsync $fsync") ports+=($port) servers+=("$redis_pid")
      port=$((port + 1))
    done
    at_rest "${servers[@]}"
    writes
  fi
  stop
fi

if [[ $SETS == *three* ]]; then
  trio=() join=""
  for n in 1 2 3; do join+="${join:+,}127.0.0.1:$((base + 10 * n + 2))"; done
  for n in 1 2 3; do countd_node $n --node-id "n$n" --join "$join" --bootstrap-expect 3 && trio+=("$countd_pid"); done
  for n in 1 2 3; do bin/countctl --addr http://127.0.0.1:$((base + 10 * n)) status --wait 60s >/dev/null; done
  fill $((base + 13)) 0
  redis_node master 17695 --appendonly yes --appendfsync no --auto-aof-rewrite-percentage 0
  redis_trio=("$redis_pid")
  fill 17695 1
  for n in 6 7; do
    redis_node replica$n 1769$n --appendonly yes --appendfsync always --auto-aof-rewrite-percentage 0 --replicaof 127.0.0.1 17695
    redis_trio+=("$redis_pid")
    until redis-cli -p 1769$n info replication | grep -q 'master_link_status:up'; do sleep 0.2; done
  done
  redis-cli -p 17695 config set appendfsync always >/dev/null
  at_rest "${trio[@]}" "${redis_trio[@]}"
  for depth in 1 16 100; do
    rm -f "$dir"/*.runs
    for ((i = 0; i < RUNS; i++)); do
      load_once 127.0.0.1:$((base + 13)),127.0.0.1:$((base + 23)),127.0.0.1:$((base + 33)) $depth "${trio[*]}" >>"$dir/0.runs"
      load_once 127.0.0.1:$((base + 13)) $depth "${trio[*]}" >>"$dir/1.runs"
      load_once 127.0.0.1:17695 $depth "${redis_trio[*]}" -wait >>"$dir/2.runs"
    done
    printf '\n**INCR in three processes, pipelines of %s**\n\n| servers | commands/s | p50 ms | p99 ms | CPU µs of all three |\n|---|---|---|---|---|\n' "$depth"
    row "countd, asked through all nodes" "$dir/0.runs"
    row "countd, asked through one" "$dir/1.runs"
    row "Redis, 2 replicas, appendfsync always, WAIT 1 a pipeline" "$dir/2.runs"
  done
fi
