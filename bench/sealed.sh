#!/usr/bin/env bash
# Measures the memory of a row and the time of a read, unpacked and packed (--seal-after), and the
# memory of a node while it restarts. Prints Markdown. Needs the built binaries (make build) and Go.
#
#   bench/sealed.sh > out.md          ROWS=5000000 RATE=800 SHARDS=1 COUNTS=../shared/data/weibo_counts.csv.gz
#
# Ids are in order, RATE a second up to two days ago, with counts drawn from real posts. Memory is
# the anonymous memory of the process, including what Go's collector keeps, minus that of a process
# without rows. While the node starts, it is the largest of samples every 10 ms. The disk of TMPDIR
# needs some 100 bytes a row.
set -euo pipefail
cd "$(dirname "$0")/.."
. bench/common.sh

ROWS=${ROWS:-5000000}
RATE=${RATE:-800}
SECONDS_EACH=${SECONDS_EACH:-10}
COUNTS=${COUNTS:-../shared/data/weibo_counts.csv.gz}
PORT=${PORT:-17610}
url=http://127.0.0.1:$PORT
dir=$(mktemp -d)
pids=()
trap 'kill -9 "${pids[@]}" 2>/dev/null || true; wait 2>/dev/null; rm -rf "$dir"' EXIT
(cd bench/rows && go build -o "$dir/rows" .)
"$dir/rows" gen "$COUNTS" "$ROWS" "$RATE" "$(($(date +%s) - 2 * 86400))" >"$dir/rows.csv"
awk -v n="$ROWS" 'BEGIN {srand(1)} NR == 1 || rand() < 20000 / n' "$dir/rows.csv" >"$dir/some.csv"

ctl() { bin/countctl --addr "$url" "$@"; }
# watch PID FILE: writes the largest anonymous memory of a process so far into a file.
watch() {
  local most=0 key value _
  while [[ -e /proc/$1/status ]]; do
    while read -r key value _; do
      [[ $key == RssAnon: ]] && ((value > most)) && most=$value && echo $((most * 1024)) >"$2"
    done 2>/dev/null <"/proc/$1/status" || true
    sleep 0.01
  done
}
start() { # ARGS…: sets node, most (the largest memory during the start) and ready (in seconds)
  local began
  began=$(date +%s.%N)
  bin/countd --data-dir "$dir/data" --http-addr "127.0.0.1:$PORT" --cluster-addr "127.0.0.1:$((PORT + 1))" \
    --gossip-addr "127.0.0.1:$((PORT + 2))" "${shard_args[@]}" --cold-after 0 "$@" >>"$dir/countd.log" 2>&1 &
  node=$! && pids+=("$node")
  watch "$node" "$dir/most" &
  local watching=$!
  pids+=("$watching")
  ctl status --wait 600s >/dev/null
  ready=$(awk -v a="$began" -v b="$(date +%s.%N)" 'BEGIN {printf "%.1f", b - a}')
  sleep 2
  most=$(cat "$dir/most")
  kill "$watching" && rm "$dir/most"
}
stop() { kill "$1" "$node" && wait "$node" 2>/dev/null || true; }
sealed() { curl -s "$url/metrics" | awk '$1 == "countd_tier_rows{keyspace=\"posts\",tier=\"sealed\"}" {printf "%.0f\n", $2}'; }
per() { awk -v b="$1" -v n="$ROWS" 'BEGIN {printf "%.2f", b / n}'; }
# reads: prints "rows/s of pages, p50 and p99 of single reads in µs".
reads() {
  local json
  json=$(ctl -o json bench --keyspace posts --consistency stale --dist uniform --duration "${SECONDS_EACH}s" --ids-from "$dir/some.csv" --op page --page 20 --concurrency 16)
  grep -o '"ops_per_second":[0-9.e+]*' <<<"$json" | head -1 | cut -d: -f2 | xargs printf '%.0f'
  json=$(ctl -o json bench --keyspace posts --consistency stale --dist uniform --duration "${SECONDS_EACH}s" --ids-from "$dir/some.csv" --op read --concurrency 1)
  for f in p50 p99; do grep -o "\"$f\":[0-9.e+]*" <<<"$json" | head -1 | cut -d: -f2; done | xargs printf ' %.0f'
}

start --seal-after 0
empty=$(anon_bytes "$node")
ctl import "$dir/rows.csv" --in-flight 16 >/dev/null
before=$(posts_digests "$url")
stop -TERM
start --seal-after 0
hotmost=$most hotready=$ready
steady "$node"
hot=$(anon_bytes "$node") hotreads=$(reads)
stop -TERM

start
first=$(sealed) packmost=$most packready=$ready
# Rows that only the log has are unpacked after a start. All but the last of each shard are packed
# within minutes.
for _ in $(seq 60); do
  [[ $(sealed) -ge $((ROWS - 4 * 15000)) ]] && break
  sleep 5
done
packed=$(sealed)
steady "$node"
rest=$(anon_bytes "$node") sealedreads=$(reads)
stop -KILL
start
killmost=$most killready=$ready again=$(posts_digests "$url")
stop -TERM

echo "$ROWS rows, of which $first were packed as the node started, $packed a few minutes later; digests $([[ $before == "$again" ]] && echo equal || echo DIFFER)."
echo
echo "| | B a row at rest | B a row at most while it starts | ready after, s |"
echo "|---|---|---|---|"
echo "| hot | $(per $((hot - empty))) | $(per $((hotmost - empty))) | $hotready |"
echo "| packed | $(per $((rest - empty))) | $(per $((packmost - empty))) | $packready |"
echo "| packed, after kill -9 | | $(per $((killmost - empty))) | $killready |"
echo
echo "| | pages of 20, rows/s | a row over HTTP, p50 µs | p99 µs |"
echo "|---|---|---|---|"
row() { echo "| $1 | $2 | $3 | $4 |"; }
# shellcheck disable=SC2086
row hot $hotreads
# shellcheck disable=SC2086
row packed $sealedreads
