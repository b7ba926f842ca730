#!/usr/bin/env bash
# Measures countctl reconcile over many rows during increments, on one node, and prints Markdown.
# Needs the built binaries (make build), redis-server and redis-cli.
#
#   bench/reconcile.sh > out.md          ROWS=10000000 RATE=50000 SHARDS=1
#
# One row in a thousand is off by one. RATE increments a second, in requests of 100, go to a column
# that the truth does not have. p50 and p99 are of these requests: first without reconcile, and then
# in steps of SECONDS_EACH until countctl has compared and corrected the rows. The next run of
# reconcile must find no difference.
set -euo pipefail
cd "$(dirname "$0")/.."
. bench/common.sh

ROWS=${ROWS:-10000000}
RATE=${RATE:-50000}
SECONDS_EACH=${SECONDS_EACH:-20}
PORT=${PORT:-17640}
use_scratch
url=http://127.0.0.1:$PORT
ctl() { bin/countctl --addr "$url" "$@"; }

redis-server --port "$((PORT + 9))" --bind 127.0.0.1 --save '' --dir "$dir" >/dev/null &
pids+=($!)
bin/countd --data-dir "$dir/data" --http-addr "127.0.0.1:$PORT" --cluster-addr "127.0.0.1:$((PORT + 1))" \
  --gossip-addr "127.0.0.1:$((PORT + 2))" "${shard_args[@]}" >"$dir/countd.log" 2>&1 &
pids+=($!)
ctl status --wait 60s >/dev/null
echo "$(date +%T) rows" >&2
awk -v n="$ROWS" -v OFS=, -v truth="$dir/truth.csv" -v rows="$dir/rows.csv" 'BEGIN {
  print "id", "like" >truth; print "id", "like" >rows
  for (i = 1; i <= n; i++) { print i, i % 50 >truth; print i, i % 50 + (i % 1000 == 0) >rows }
}'
ctl import "$dir/rows.csv" --keyspace posts --yes >/dev/null
rm "$dir/rows.csv"
redis-cli -p "$((PORT + 9))" XADD likes 1-1 value '{"keyspace":"posts","id":1,"add":{"like":1}}' >/dev/null
printf 'name: likes\ntype: redis-stream\naddr: 127.0.0.1:%d\nkey: likes\n' "$((PORT + 9))" >"$dir/likes.yaml"
ctl source create "$dir/likes.yaml" >/dev/null
ctl source show likes --wait >/dev/null

# load SECONDS: prints the answered increments per second, and p50 and p99 of a request in ms.
load() {
  ctl bench --yes --op incr --keyspace posts --column view --batch 100 --no-results --dist uniform --ids "$ROWS" \
    --rate "$((RATE / 100))" --duration "$1s" -o json >"$dir/load.json"
  python3 -c 'import json,sys; r = json.load(open(sys.argv[1])); print(json.dumps(r), file=sys.stderr); print(r)' "$dir/load.json"
}
# reconcile must ignore the message in the queue: the truth at position 1-1 does not include it.
reconcile() { ctl reconcile "$dir/truth.csv" --keyspace posts --source likes --at 1-1 --yes -o json; }
at_rest "${pids[1]}" # until the import's work is done
load "$SECONDS_EACH"
date +%s.%N >"$dir/began"
(reconcile >"$dir/first.json" && date +%s.%N >"$dir/ended") &
first=$!
load "$SECONDS_EACH"
while kill -0 "$first" 2>/dev/null; do load "$SECONDS_EACH"; done
wait "$first"
echo "$(cat "$dir/ended" "$dir/began" | xargs)" | awk '{print $1 - $2}'
cat "$dir/first.json" | head -c 300
reconcile | head -c 200
