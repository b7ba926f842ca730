#!/usr/bin/env bash
# Measures timelines of one countd, and of a push design in redis-server, on this machine. Prints
# Markdown. The push design writes each post into a list of each follower (LPUSH and LTRIM), and
# reads a page by LRANGE and MGET. Needs redis-server and redis-tools, curl, jq (Debian), Go and the
# built binaries (make build).
#
#   bench/timeline.sh > out.md
#
#   USERS=1000000        users, who are authors too, each with a feed
#   FOLLOWEES=90         of a user on average, 2,000 at the most
#   POSTS=3              of each author
#   KEPT=800             posts that a list in Redis keeps
#   SAMPLE=20000         users who have lists in Redis; their bytes are scaled to USERS
#   SECONDS_EACH=10 RUNS=3   of each load; a figure is the median of the runs with the least
#                        and the largest
#   EDGES=../shared/data/follow_edges.csv.gz   follow graphs, of which the numbers of
#                        followers and followees are printed beside those that were drawn
#
# CPU is that of the server process alone. Each user follows author 1, so a post of author 1 always
# has USERS followers in countd, even if the push writes to fewer. The CPU of a publish is in the
# table of loads. Everything listens on loopback and stops at the end.
set -euo pipefail
cd "$(dirname "$0")/.."
. bench/common.sh

USERS=${USERS:-1000000}
FOLLOWEES=${FOLLOWEES:-90}
POSTS=${POSTS:-3}
KEPT=${KEPT:-800}
SAMPLE=${SAMPLE:-20000}
SECONDS_EACH=${SECONDS_EACH:-10}
RUNS=${RUNS:-3}
EDGES=${EDGES:-../shared/data/follow_edges.csv.gz}
http=17900 redis_always=17979 redis_none=17980
url=http://127.0.0.1:$http
use_scratch

bin/countd --data-dir "$dir/countd" --log-level warn \
  --http-addr 127.0.0.1:$http --cluster-addr 127.0.0.1:17901 --gossip-addr 127.0.0.1:17902 "${shard_args[@]}" >"$dir/countd.log" 2>&1 &
countd=$! && pids+=("$countd")
mkdir "$dir/always" "$dir/none"
redis-server --port $redis_always --bind 127.0.0.1 --dir "$dir/always" --save '' --appendonly yes --appendfsync always \
  --auto-aof-rewrite-percentage 0 >"$dir/always.log" 2>&1 &
always=$! && pids+=("$always")
redis-server --port $redis_none --bind 127.0.0.1 --dir "$dir/none" --save '' --appendonly no >"$dir/none.log" 2>&1 &
none=$! && pids+=("$none")
bin/countctl --addr $url status --wait 60s >/dev/null
until redis-cli -p $redis_always ping >/dev/null 2>&1 && redis-cli -p $redis_none ping >/dev/null 2>&1; do sleep 0.1; done

die() { echo "$*" >&2 && exit 1; }
note() { echo "$(date +%T) $*" >&2; }
ratio() { awk -v a="$1" -v b="$2" "BEGIN {printf \"${3:-%.1f}\", a / b}"; }
engine_bytes() { curl -sf $url/v1/cluster | jq "[.groups[] | select(.keyspace == \"$1\") | .bytes] | add"; }
bench() { bin/countctl --addr $url --yes --timeout 60s -o json bench "$@" || die "$(jq -c .errors "$dir/report.json")"; }

# once ARGS…: runs a load on countd and prints "per_second cpu_us p50 p99".
once() {
  local before after
  before=$(cpu_ticks "$countd")
  bench "$@" >"$dir/report.json" || die "$(cat "$dir/report.json")"
  after=$(cpu_ticks "$countd")
  jq -r "\"\(.requests_per_second) \(($after - $before) * 10000 / .requests) \(.latency_us.p50) \(.latency_us.p99)\"" "$dir/report.json"
}

# row LABEL FILE
row() {
  local c out="| $1 |"
  for c in 1 2 3 4; do out+=" $(awk -v c=$c '{print $c}' "$2" | spread) |"; done
  echo "$out"
}

# load LABEL COMMAND…: runs the command RUNS times and prints a row.
load() {
  local label=$1 i
  shift
  note "$label"
  rm -f "$dir/load.runs"
  for ((i = 0; i < RUNS; i++)); do "$@" >>"$dir/load.runs"; done
  row "$label" "$dir/load.runs"
}

# redis_once PORT PID COMMAND…: runs a load on Redis and prints the same as once.
redis_once() {
  local port=$1 pid=$2 n before after csv
  shift 2
  n=$((SECONDS_EACH * 10000))
  before=$(cpu_ticks "$pid")
  csv=$(redis-benchmark -p "$port" -r "$SAMPLE" -c 64 --csv --precision 3 -n $n "$@" | tail -1 | tr -d '"')
  after=$(cpu_ticks "$pid")
  awk -F, -v n=$n -v t=$((after - before)) '{printf "%.0f %.2f %.0f %.0f\n", $(NF-6), t * 10000 / n, $(NF-3) * 1000, $(NF-1) * 1000}' <<<"$csv"
}

# push PORT PID FOLLOWERS: writes one post into the lists of FOLLOWERS users; prints "ms cpu_ms".
push() {
  local before after start end
  before=$(cpu_ticks "$2") start=$(date +%s%N)
  awk -v n="$3" -v s="$SAMPLE" -v k="$KEPT" 'BEGIN {for (i = 0; i < n; i++) {u = i % s; printf "LPUSH tl:%012d 4467107636950632\r\nLTRIM tl:%012d 0 %d\r\n", u, u, k - 1}}' |
    redis-cli -p "$1" --pipe >/dev/null
  end=$(date +%s%N) after=$(cpu_ticks "$2")
  awk -v ns=$((end - start)) -v t=$((after - before)) 'BEGIN {printf "%.2f %.0f\n", ns / 1e6, t * 10}'
}

echo "$(date -u +%F), $(nproc) cores, $(awk -F': ' '/model name/ {print $2; exit}' /proc/cpuinfo), $(redis-server --version | cut -d' ' -f3), ${RUNS} runs, load before $(cut -d' ' -f1 /proc/loadavg)"
if [ -f "$EDGES" ]; then
  gzip -dc "$EDGES" | awk -F, 'NR > 1 {out[$1 $2]++; in_[$1 $3]++; e++}
    END {for (u in out) {n++; if (out[u] > m) m = out[u]} for (a in in_) {k++; if (in_[a] > q) q = in_[a]}
    printf "\nThe graphs of %s have %.1f followees a follower on average and %d at most, and %d followers of an author at most.\n", "follow_edges.csv.gz", e / n, m, q}'
fi

feed_before=$(engine_bytes feed) users_before=$(engine_bytes users)
note "feeds of $USERS users"
bench --op feed --dist each --ids "$USERS" --requests "$USERS" --followees "$FOLLOWEES" --authors "$USERS" --duration 0 --concurrency 32 >"$dir/report.json"
edges=$(jq .ops "$dir/report.json")
feed_bytes=$(($(engine_bytes feed) - feed_before))
note "$POSTS posts of each"
bench --op post --dist each --ids "$USERS" --requests $((USERS * POSTS)) --duration 0 --concurrency 32 >"$dir/report.json"
outbox_bytes=$(($(engine_bytes users) - users_before))

note "$SAMPLE lists of $KEPT posts"
before=$(redis-cli -p $redis_none info memory | awk -F: '/^used_memory:/ {print $2 + 0}')
awk -v s="$SAMPLE" -v k="$KEPT" 'BEGIN {for (u = 0; u < s; u++) {printf "RPUSH tl:%012d", u; for (i = 0; i < k; i++) printf " %d", 4467107636950632 - 4194304 * i - u; printf "\r\n"}
  for (u = 0; u < s; u++) printf "SET post:%012d 12\r\n", u}' >"$dir/lists"
redis-cli -p $redis_none --pipe <"$dir/lists" >/dev/null
push_bytes=$(ratio $(($(redis-cli -p $redis_none info memory | awk -F: '/^used_memory:/ {print $2 + 0}') - before)) "$SAMPLE" %.0f)
redis-cli -p $redis_always --pipe <"$dir/lists" >/dev/null

mine=$(ratio $((feed_bytes + outbox_bytes)) "$USERS")
printf '\n**Memory**, %s users with %s followees each and %s posts of each author\n\n| | bytes per user |\n|---|---|\n' "$USERS" "$(ratio "$edges" "$USERS")" "$POSTS"
printf '| countd, outbox and counts of posts | %s |\n| countd, feed, which unread numbers need too | %s |\n| countd, both | %s |\n' \
  "$(ratio $outbox_bytes "$USERS")" "$(ratio $feed_bytes "$USERS")" "$mine"
printf '| Redis, list of %s posts, of %s users | %s, %s times as much |\n' "$KEPT" "$SAMPLE" "$push_bytes" "$(ratio "$push_bytes" "$mine")"

printf '\n**A post**\n\n| followers | countd, synced, ms | Redis, no persistence, ms | its CPU ms | Redis, always, ms | its CPU ms |\n|---|---|---|---|---|---|\n'
for followers in 100 10000 "$USERS"; do
  note "a post with $followers followers"
  id=$(((($(date +%s) - 515483463) << 22) + followers))
  start=$(date +%s%N)
  curl -sf -o /dev/null $url/v1/outbox/1 -d "{\"id\":\"$id\"}"
  wrote=$(($(date +%s%N) - start))
  for user in 1 $((USERS / 3)) $((USERS / 2)) "$USERS"; do
    curl -sf "$url/v1/timeline/$user?limit=1&consistency=linearizable" | jq -e ".posts[0].id == \"$id\"" >/dev/null || die "user $user does not see post $id"
  done
  read -r none_ms none_cpu < <(push $redis_none "$none" "$followers")
  read -r always_ms always_cpu < <(push $redis_always "$always" "$followers")
  printf '| %s | %s | %s | %s | %s | %s |\n' "$followers" "$(ratio $wrote 1000000 %.2f)" "$none_ms" "$none_cpu" "$always_ms" "$always_cpu"
done

printf '\n**Loads**, 64 in flight\n\n| | per second | server CPU µs | p50 µs | p99 µs |\n|---|---|---|---|---|\n'
load "countd, increment of a user" once --op incr --keyspace users --column posts --dist uniform --ids "$USERS" --duration "${SECONDS_EACH}s"
load "countd, publish" once --op post --dist uniform --ids "$USERS" --duration "${SECONDS_EACH}s"
load "countd, page of 20 with counts" once --op timeline --page 20 --dist uniform --ids "$USERS" --duration "${SECONDS_EACH}s"
keys=()
for _ in $(seq 20); do keys+=("post:__rand_int__"); done
load "Redis, LRANGE of 20, no persistence" redis_once $redis_none "$none" lrange tl:__rand_int__ 0 19
load "Redis, MGET of 20 counts, no persistence" redis_once $redis_none "$none" mget "${keys[@]}"

note "users with 2,000 followees"
for user in $(seq $((USERS + 1)) $((USERS + 200))); do
  jq -nc --argjson u "$USERS" --argjson s "$user" '{followees: ([range(2000) | (. * 7919 + $s * 104729) % $u + 1] | unique)}' |
    curl -sf -o /dev/null "$url/v1/feed/$user/reset" -d @-
done
{ echo id && seq $((USERS + 1)) $((USERS + 200)); } >"$dir/large.csv"
load "countd, page of 20 with counts, 2,000 followees" once --op timeline --page 20 --dist uniform --ids-from "$dir/large.csv" --duration "${SECONDS_EACH}s"
