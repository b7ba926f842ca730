#!/usr/bin/env bash
# Measures unread numbers of one countd, and of a naive design in redis-server, on this machine.
# Prints Markdown. The naive design writes each event to each user. Needs redis-server and
# redis-tools, curl, jq (Debian), Go and the built binaries (make build).
#
#   bench/unread.sh > out.md        some half an hour and 4 GB with what is below
#
#   NOTIFIED=10000000   users with a cursor in a channel, of a notice to all
#   FOLLOWERS=1000000   users with a feed, all of whom follow one author
#   FOLLOWEES=90        of a feed on average, of AUTHORS=1000000; 2,000 at the most
#   SECONDS_EACH=10 RUNS=3   of each load of polls; a figure is the median of the
#                       runs with the least and the largest
#   STORE=shared        countd's log
#   REST=40             seconds before memory is looked at: the server gives back to
#                       the system what it collected in once it has been at rest
#   PROFILE=            a file for what the server does in polls, by perf as root
#
# CPU is that of the server process alone. Bytes are those that the engine reports for its tables,
# and the growth of the process's anonymous memory. The growth includes up to 4 MiB per shard of the
# newest log entries, which the first loads leave behind. Everything listens on loopback and stops
# at the end.
set -euo pipefail
cd "$(dirname "$0")/.."
. bench/common.sh

NOTIFIED=${NOTIFIED:-10000000}
FOLLOWERS=${FOLLOWERS:-1000000}
FOLLOWEES=${FOLLOWEES:-90}
AUTHORS=${AUTHORS:-1000000}
SECONDS_EACH=${SECONDS_EACH:-10}
RUNS=${RUNS:-3}
STORE=${STORE:-shared}
REST=${REST:-40}
PROFILE=${PROFILE:-}
http=17800 redis_always=17879 redis_none=17880
url=http://127.0.0.1:$http
# Requests in flight of the loads that prepare the measurement.
MAKERS=512
dir=$(mktemp -d)
pids=()
trap 'kill "${pids[@]}" 2>/dev/null || true; wait 2>/dev/null; rm -rf "$dir"' EXIT

(cd bench/respload && go build -o "$dir/respload" .)
server=bin/countd
if [ -n "$PROFILE" ]; then server=$dir/countd-symbols && go build -trimpath -o "$server" ./cmd/countd; fi
"$server" --data-dir "$dir/countd" --log-level warn --log-store "$STORE" \
  --http-addr 127.0.0.1:$http --cluster-addr 127.0.0.1:17801 --gossip-addr 127.0.0.1:17802 "${shard_args[@]}" >"$dir/countd.log" 2>&1 &
countd=$! && pids+=("$countd")
mkdir "$dir/always" "$dir/none"
redis-server --port $redis_always --bind 127.0.0.1 --dir "$dir/always" --save '' --appendonly yes --appendfsync always \
  --auto-aof-rewrite-percentage 0 >"$dir/always.log" 2>&1 &
always=$! && pids+=("$always")
redis-server --port $redis_none --bind 127.0.0.1 --dir "$dir/none" --save '' --appendonly no >"$dir/none.log" 2>&1 &
none=$! && pids+=("$none")
bin/countctl --addr $url status --wait 20s >/dev/null
until redis-cli -p $redis_always ping >/dev/null 2>&1 && redis-cli -p $redis_none ping >/dev/null 2>&1; do sleep 0.1; done

die() { echo "$*" >&2 && exit 1; }
note() { echo "$(date +%T) $*" >&2; }

# engine_bytes KEYSPACE: prints the bytes of its tables that the engine reports.
engine_bytes() { curl -sf $url/v1/cluster | jq "[.groups[] | select(.keyspace == \"$1\") | .bytes] | add"; }

rest() { at_rest "$countd" && sleep "$REST"; }

ratio() { awk -v a="$1" -v b="$2" "BEGIN {printf \"${3:-%.1f}\", a / b}"; }

bench() { bin/countctl --addr $url --yes --timeout 60s -o json bench "$@"; }

# make_all N ARGS…: runs a load once for each of the ids 1 … N, and prints its report.
make_all() {
  local n=$1
  shift
  note "$n × $*"
  bench --dist each --ids "$n" --concurrency $MAKERS --duration 0 "$@"
}

# grown TITLE UNIT KEYSPACE N COMMAND…: runs the command and adds a row with the memory of N units.
grown() {
  local title=$1 unit=$2 keyspace=$3 n=$4 engine anon
  shift 4
  engine=$(engine_bytes "$keyspace") anon=$(anon_bytes "$countd")
  "$@" >"$dir/report.json"
  rest
  if [ "$n" = ops ]; then n=$(jq .ops "$dir/report.json"); fi
  printf '| %s | %s %s | %s | %s |\n' "$title" "$n" "$unit" "$(ratio $(($(engine_bytes "$keyspace") - engine)) "$n")" \
    "$(ratio $(($(anon_bytes "$countd") - anon)) "$n")" >>"$dir/bytes.md"
}

# fan_out PORT PID N KEY: increments a count of each of N users in Redis; prints
# "seconds cpu_seconds".
fan_out() {
  local n rate before after
  before=$(cpu_ticks "$2")
  read -r n rate _ < <("$dir/respload" -addrs "127.0.0.1:$1" -conns 4 -depth 100 -rows "$3" -each "$4")
  after=$(cpu_ticks "$2")
  [ "$n" = "$3" ] || die "$n of $3 users were told"
  awk -v n="$n" -v r="$rate" -v t=$((after - before)) 'BEGIN {printf "%.2f %.2f\n", n / r, t / 100}'
}

# sample N: prints a hundred users of 1 … N, evenly spread, as JSON.
sample() { jq -nc "[range(100) | . * (($1 - 1) / 99 | floor) + 1]"; }

# told MEMBER N: prints the sum of a number over polls of the sample; sets seconds.
told() {
  curl -sf -o "$dir/poll.json" -w '%{time_total}' -H 'consistency: linearizable' $url/v1/poll \
    -d "{\"users\":$(sample "$2"),\"channels\":[\"news\"]}" >"$dir/seconds"
  seconds=$(cat "$dir/seconds") sum=$(jq "[.results[] | $1] | add" "$dir/poll.json")
}

# once_for_all MEMBER N PATH BODY: sends one write, which adds 1 for each user of the sample. It
# sets wrote to the seconds of the write, and seen to those of the first poll after it.
once_for_all() {
  local before
  told "$1" "$2"
  before=$sum
  wrote=$(curl -sf -o /dev/null -w '%{time_total}' "$url$3" -d "$4")
  told "$1" "$2"
  seen=$seconds
  [ "$sum" = $((before + 100)) ] || die "of 100 users $((sum - before)) were told"
}

# compare_fan_out TITLE MEMBER N PATH BODY KEY
compare_fan_out() {
  local i s c
  rm -f "$dir"/*.runs
  for ((i = 0; i < RUNS; i++)); do
    note "$1"
    s=$(cpu_ticks "$countd")
    once_for_all "$2" "$3" "$4" "$5"
    c=$(($(cpu_ticks "$countd") - s))
    ratio "$wrote" 0.001 %.2f >>"$dir/wrote.runs" && echo >>"$dir/wrote.runs"
    ratio "$seen" 0.001 %.2f >>"$dir/seen.runs" && echo >>"$dir/seen.runs"
    ratio $c 100 %.2f >>"$dir/cpu.runs" && echo >>"$dir/cpu.runs"
    for peer in none always; do
      local port=redis_$peer pid=$peer
      fan_out "${!port}" "${!pid}" "$3" "$6" >>"$dir/$peer.runs"
    done
  done
  printf '\n**%s**\n\n| server | until all are told, s | server CPU s |\n|---|---|---|\n' "$1"
  printf '| countd, one write, synced: %s ms, and %s ms for the first poll of 100 of the users, who all see it | %s | %s |\n' \
    "$(spread <"$dir/wrote.runs")" "$(spread <"$dir/seen.runs")" \
    "$(awk '{printf "%.4f\n", $1 / 1000}' "$dir/wrote.runs" | spread)" "$(spread <"$dir/cpu.runs")"
  printf '| Redis, no persistence, %s INCR in pipelines of 100 | %s | %s |\n' "$3" "$(cut -d' ' -f1 "$dir/none.runs" | spread)" "$(cut -d' ' -f2 "$dir/none.runs" | spread)"
  printf '| Redis, appendfsync always, the same | %s | %s |\n' "$(cut -d' ' -f1 "$dir/always.runs" | spread)" "$(cut -d' ' -f2 "$dir/always.runs" | spread)"
}

# polls_once ARGS…: prints "users/s p50 p99 p99.99 cpu_us_per_user".
polls_once() {
  local before after
  before=$(cpu_ticks "$countd")
  bench --dist uniform --ids "$FOLLOWERS" --channels news,shop --dots sale --duration "${SECONDS_EACH}s" "$@" >"$dir/report.json"
  after=$(cpu_ticks "$countd")
  jq -r "\"\(.ops_per_second) \(.latency_us.p50) \(.latency_us.p99) \(.latency_us.p99_99) \(($after - $before) * 10000 / .ops)\"" "$dir/report.json"
}

# redis_polls_once: prints the same figures for MGET of the seven counts of the naive design.
redis_polls_once() {
  local csv n before after keys=() k
  for k in at comment like dm news shop feed; do keys+=("unread:__rand_int__:$k"); done
  n=$((SECONDS_EACH * 40000))
  before=$(cpu_ticks "$none")
  csv=$(redis-benchmark -p $redis_none -r "$FOLLOWERS" -c 64 --csv --precision 3 -n $n mget "${keys[@]}" | tail -1 | tr -d '"')
  after=$(cpu_ticks "$none")
  awk -F, -v n=$n -v t=$((after - before)) '{printf "%.0f %.0f %.0f - %.2f\n", $(NF-6), $(NF-3) * 1000, $(NF-1) * 1000, t * 10000 / n}' <<<"$csv"
}

row() { # row LABEL FILE
  local c out="| $1 |"
  for c in 1 2 3 4 5; do out+=" $(awk -v c=$c '{print $c}' "$2" | spread) |"; done
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

echo "$(date -u +%F), $(nproc) cores, $(awk -F': ' '/model name/ {print $2; exit}' /proc/cpuinfo), $(redis-server --version | cut -d' ' -f3), ${RUNS} runs, --log-store ${STORE}, load before $(cut -d' ' -f1 /proc/loadavg)"

note "posts of $AUTHORS authors, 300 on average"
awk -v n="$AUTHORS" 'BEGIN { srand(1); print "id,posts"; for (id = 1; id <= n; id++) printf "%d,%d\n", id, 1 - 300 * log(1 - rand()) }' >"$dir/posts.csv"
bin/countctl --addr $url import "$dir/posts.csv" --keyspace users --map posts=posts >/dev/null 2>"$dir/import.log" || die "$(cat "$dir/import.log")"
rest
for name in news shop; do curl -sf -o /dev/null -X POST $url/v1/notices/$name; done
curl -sf -o /dev/null -X POST $url/v1/dots/sale/fire

grown "one-to-one" users unread "$FOLLOWERS" make_all "$FOLLOWERS" --keyspace unread --column at --op incr --no-results --batch 1000 --requests $((FOLLOWERS / 1000))
grown "cursor in a channel" users unread "$NOTIFIED" make_all "$NOTIFIED" --op seen --channels news --requests "$NOTIFIED"
grown "and in another, for some" users unread "$FOLLOWERS" make_all "$FOLLOWERS" --op seen --channels shop --requests "$FOLLOWERS"
grown "and a dot cleared, for some" users unread "$FOLLOWERS" make_all "$FOLLOWERS" --op clear --dots sale --requests "$FOLLOWERS"
grown "feed" followees feed ops make_all "$FOLLOWERS" --op feed --followees "$FOLLOWEES" --authors "$AUTHORS" --requests "$FOLLOWERS"
mean=$(ratio "$(jq .ops "$dir/report.json")" "$FOLLOWERS")
note "3 posts of each author, on average"
bench --keyspace users --column posts --op incr --no-results --batch 10000 --concurrency 4 --duration 0 --dist uniform \
  --ids "$AUTHORS" --requests $(((3 * AUTHORS + 9999) / 10000)) >/dev/null
at_rest "$countd"

compare_fan_out "One notice to $NOTIFIED users" .notices.news "$NOTIFIED" /v1/notices/news '{}' news
printf '\nRedis takes %s B of memory a user for this count alone.\n' \
  "$(ratio "$(redis-cli -p $redis_none info memory | awk -F: '/^used_memory:/ {print $2 + 0}')" "$NOTIFIED")"
compare_fan_out "One post by an author whom $FOLLOWERS users follow" .feed "$FOLLOWERS" /v1/counters/users/incr '{"ops":[{"id":"1","add":{"posts":1}}]}' feed

printf '\n**Polls of all kinds: four counts, two channels, a dot and a feed of %s followees on average, %s users drawn evenly**\n\n' "$mean" "$FOLLOWERS"
printf '| load | users/s | p50 µs | p99 µs | p99.99 µs | server CPU µs a user |\n|---|---|---|---|---|---|\n'
load "GET /v1/poll, 1 in flight" polls_once --op poll --concurrency 1
load "GET /v1/poll, 64 in flight" polls_once --op poll --concurrency 64
rate=$(awk '{print $1}' "$dir/load.runs" | sort -g | awk '{v[NR]=$1} END {printf "%d", v[int((NR+1)/2)] / 2}')
load "GET /v1/poll, $rate a second, 64 in flight at most" polls_once --op poll --concurrency 64 --rate "$rate"
load "POST /v1/poll of 100 users, 8 in flight" polls_once --op polls --page 100 --concurrency 8
load "Redis, MGET of the 7 counts of the naive way, 64 in flight" redis_polls_once
printf '\nGoal: 15 µs and 40 ns a followee, which are %s µs.\n' "$(awk -v m="$mean" 'BEGIN {printf "%.1f", 15 + 0.04 * m}')"

printf '\n**Memory**\n\n| kind | of | B each, engine | B each, anonymous memory |\n|---|---|---|---|\n'
cat "$dir/bytes.md"

if [ -n "$PROFILE" ]; then
  note "profile"
  bench --dist uniform --ids "$FOLLOWERS" --channels news,shop --dots sale --op poll --concurrency 64 --duration 15s >/dev/null &
  polling=$!
  sleep 3 # until the load runs
  perf record -q -F 499 -p "$countd" -o "$dir/perf.data" -- sleep 10 >/dev/null 2>&1
  wait $polling
  for by in dso symbol; do
    perf report -i "$dir/perf.data" --no-children --percent-limit 0.4 --stdio -g none -s $by --fields overhead,$by 2>/dev/null |
      awk '!/^#/ && NF {print $1, $2, $3}' | sort -rn
  done >"$PROFILE"
fi
