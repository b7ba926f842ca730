#!/usr/bin/env bash
# Measures in one run, and prints Markdown:
#   - the memory and disk of a hot and of a cold row, beside Redis with a hash a post;
#   - the time of a read of a cold row, beside a read of the bare disk;
#   - the time that a node with the rows takes to start.
# Needs the built binaries (make build), Go, and redis-server and redis-cli unless REDIS=0. Run it
# as root, because only root can empty the system's cache.
#
#   bench/cold.sh > out.md            ROWS=10000000 COLD=95 SHARDS=1 COUNTS=../shared/data/weibo_counts.csv.gz
#   ROWS=100000000 REDIS=0 bench/cold.sh
#
# Ids are in order, 800 a second up to now, with counts drawn from real posts. COLD percent of the
# rows are old enough to be cold. Memory is the anonymous memory of the process, including what Go's
# collector keeps, minus that of a process without rows. The script measures the disk of TMPDIR,
# which needs some 100 bytes a row.
set -euo pipefail
cd "$(dirname "$0")/.."
. bench/common.sh

ROWS=${ROWS:-10000000}
COLD=${COLD:-95}
REDIS=${REDIS:-1}
SECONDS_EACH=${SECONDS_EACH:-10}
COUNTS=${COUNTS:-../shared/data/weibo_counts.csv.gz}
url=http://127.0.0.1:17600
dir=$(mktemp -d)
pids=()
trap 'kill -9 "${pids[@]}" 2>/dev/null || true; wait 2>/dev/null; rm -rf "$dir"' EXIT
(cd bench/rows && go build -o "$dir/rows" .)

after=$((ROWS / 800 * (100 - COLD) / 100))s
"$dir/rows" gen "$COUNTS" "$ROWS" 800 "$(date +%s)" >"$dir/rows.csv"
# 20,000 ids of the older half, and 20,000 of those that stay in memory longest.
sample() { awk -v n="$1" 'BEGIN {srand(1)} NR > 1 && rand() < 20000 / n {print $0}' | (echo id,repost,comment,like,view && shuf --random-source=<(yes)) ; }
head -n $((ROWS / 2)) "$dir/rows.csv" | sample $((ROWS / 2)) >"$dir/old.csv"
tail -n 20000 "$dir/rows.csv" | sample 20000 >"$dir/new.csv"

ctl() { bin/countctl --addr $url "$@"; }
start() { # ARGS…
  bin/countd --data-dir "$dir/data" --http-addr 127.0.0.1:17600 --cluster-addr 127.0.0.1:17601 --gossip-addr 127.0.0.1:17602 \
    "${shard_args[@]}" --seal-after 0 "$@" >>"$dir/countd.log" 2>&1 &
  node=$! && pids+=("$node")
  ctl status --wait 600s >/dev/null
}
metric() { curl -s $url/metrics | awk -v m="$1" '$1 == m {printf "%.0f\n", $2}'; }
digests() { posts_digests $url; }
per() { awk -v b="$1" -v n="$2" 'BEGIN {printf "%.2f", b / n}'; }
seconds() { awk -v a="$1" -v b="$2" 'BEGIN {printf "%.1f", b - a}'; }
# bench ARGS…: prints "ops/s p50_us p99_us".
bench() {
  local json
  json=$(ctl -o json bench --keyspace posts --consistency stale --dist uniform --duration "${SECONDS_EACH}s" "$@")
  for f in ops_per_second p50 p99; do grep -o "\"$f\":[0-9.e+]*" <<<"$json" | head -1 | cut -d: -f2; done | xargs printf '%.0f '
}

start --cold-after 0
empty=$(anon_bytes "$node")
began=$(date +%s.%N)
ctl import "$dir/rows.csv" --in-flight 16 >/dev/null
loaded=$(date +%s.%N)
steady "$node"
hot=$(anon_bytes "$node") hotdisk=$(du -sb "$dir/data" | cut -f1)
before=$(digests)
hotrate=$(bench --op page --page 20 --ids-from "$dir/new.csv" --concurrency 16)
kill "$node" && wait "$node"

start --cold-after "$after"
until [[ $(metric countd_cold_moved_rows_total) -gt 0 ]]; do sleep 0.1; done
moved=$(metric countd_cold_moved_rows_total)
bench --op read --ids-from "$dir/old.csv" --rate 1000 --concurrency 16 >"$dir/moving" &
moving=$(bench --op page --page 20 --ids-from "$dir/new.csv" --concurrency 16)
wait $!
moved=$((($(metric countd_cold_moved_rows_total) - moved) / SECONDS_EACH))
while [[ $(metric countd_cold_rows) -lt $((ROWS / 100 * (COLD - 1))) ]]; do sleep 5; done
began_mixed=$(bench --op page --page 20 --ids-from "$dir/new.csv" --concurrency 16)
steady "$node"
cold=$(anon_bytes "$node") rows=$(metric countd_cold_rows)
blocks=$(metric countd_cold_bytes) files=$(metric countd_cold_disk_bytes)
colddisk=$(du -sb "$dir/data" | cut -f1)

kill -9 "$node" && wait "$node" 2>/dev/null || true
sync && { echo 3 >/proc/sys/vm/drop_caches; } 2>/dev/null || true
killed=$(date +%s.%N)
start --cold-after "$after"
ready=$(date +%s.%N)
again=$(digests)
direct=$("$dir/rows" disk "$dir/rows.csv" 5000)
first=$(bench --op read --ids-from "$dir/old.csv" --concurrency 1 --requests 5000 --duration 0s)
bench --op read --ids-from "$dir/old.csv" --concurrency 16 --requests 200000 --duration 0s >/dev/null
warm=$(bench --op read --ids-from "$dir/old.csv" --concurrency 1 --requests 20000 --duration 0s)
onehot=$(bench --op read --ids-from "$dir/new.csv" --concurrency 1 --requests 20000 --duration 0s)
alone=$(bench --op page --page 20 --ids-from "$dir/new.csv" --concurrency 16)
bench --op read --ids-from "$dir/old.csv" --rate 1000 --concurrency 16 >"$dir/beside" &
beside=$(bench --op page --page 20 --ids-from "$dir/new.csv" --concurrency 16)
wait $!
steady "$node"
restarted=$(anon_bytes "$node")
kill "$node" && wait "$node"

echo "$ROWS rows, loaded in $(seconds "$began" "$loaded") s: $(awk -v n="$ROWS" -v a="$began" -v b="$loaded" 'BEGIN {printf "%.0f", n / (b - a)}') rows/s."
echo
echo "| | B a row |"
echo "|---|---|"
echo "| all in memory | $(per $((hot - empty)) "$ROWS") |"
echo "| $rows cold, memory of all | $(per $((cold - empty)) "$ROWS") |"
echo "| the same after kill -9 and reads | $(per $((restarted - empty)) "$ROWS") |"
echo "| blocks on disk, a cold row | $(per "$blocks" "$rows") |"
echo "| files on disk, a cold row | $(per "$files" "$rows") |"
echo "| data directory, all in memory | $(per "$hotdisk" "$ROWS") |"
echo "| data directory, $rows cold | $(per "$colddisk" "$ROWS") |"
if [[ $REDIS != 0 ]]; then
  redis-server --port 17679 --bind 127.0.0.1 --dir "$dir" --save '' --appendonly no >"$dir/redis.log" 2>&1 &
  redis=$! && pids+=("$redis")
  until redis-cli -p 17679 ping >/dev/null 2>&1; do sleep 0.1; done
  none=$(anon_bytes "$redis")
  "$dir/rows" redis <"$dir/rows.csv" | redis-cli -p 17679 --pipe >/dev/null
  echo "| Redis, a hash a post | $(per $(($(anon_bytes "$redis") - none)) "$ROWS") |"
fi
echo
echo "Ready $(seconds "$killed" "$ready") s after kill -9; digests $([[ $before == "$again" ]] && echo equal || echo DIFFER)."
echo
echo "| | p50, µs | p99, µs |"
echo "|---|---|---|"
row() { echo "| $1 | $2 | $3 |"; }
row "4 KiB of the disk, past the system's cache" $direct
row "a cold row over HTTP, nothing cached" ${first#* }
row "the same, cached" ${warm#* }
row "a row in memory over HTTP" ${onehot#* }
echo
echo "| pages of 20 rows in memory | rows/s |"
echo "|---|---|"
echo "| all rows in memory | ${hotrate%% *} |"
echo "| right after the others became cold | ${began_mixed%% *} |"
echo "| after the restart | ${alone%% *} |"
echo "| beside 1,000 cold reads a second ($(cut -d' ' -f1 "$dir/beside") done) | ${beside%% *} |"
echo "| beside as many ($(cut -d' ' -f1 "$dir/moving") done) and $moved rows a second that go to disk | ${moving%% *} |"
