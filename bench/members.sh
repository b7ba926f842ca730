#!/usr/bin/env bash
# Measures likes of posts in countd, Redis and PostgreSQL, one server each, on this machine. Prints
# Markdown. Needs redis-server, redis-tools, postgresql and postgresql-contrib (Debian: pgbench is
# among them), curl, jq, Go and the built binaries (make build). As root it runs PostgreSQL as the
# user postgres.
#
#   bench/members.sh > out.md
#
#   PAIRS=5000000        likes in countd before the measurement, ten for each post
#   SECONDS_EACH=5 RUNS=3   of each load; a figure is the median of the runs with the least
#                        and the largest
#   REST=60              seconds of rest before the script reads the memory
#
# In countd, a like is one op. In Redis (appendfsync always), it is SADD, SCARD and the reverse SADD
# in MULTI. In PostgreSQL (prepared, fsync), it is a transaction that inserts a row into a table of
# pairs with a unique index, and increments a row of counts. CPU is that of the server, including
# its background work during the load. Everything listens on loopback and stops at the end.
set -euo pipefail
cd "$(dirname "$0")/.."
. bench/common.sh

PAIRS=${PAIRS:-5000000}
SECONDS_EACH=${SECONDS_EACH:-5}
RUNS=${RUNS:-3}
REST=${REST:-60}
POSTS=$((PAIRS / 10))
http=17950 resp=17953 redis=17979 pg=17982
url=http://127.0.0.1:$http
use_scratch
chmod 755 "$dir"

note() { echo "$(date +%T) $*" >&2; }
ratio() { awk -v a="$1" -v b="$2" "BEGIN {printf \"${3:-%.2f}\", a / b}"; }
median() { awk -v c="$2" '{print $c}' "$dir/$1.runs" | sort -g | awk '{v[NR] = $1} END {print v[int((NR + 1) / 2)]}'; }

(cd bench/likes && go build -o "$dir/likes" .)
bin/countd --data-dir "$dir/countd" --log-level warn \
  --http-addr 127.0.0.1:$http --cluster-addr 127.0.0.1:17951 --gossip-addr 127.0.0.1:17952 --redis-addr 127.0.0.1:$resp "${shard_args[@]}" >"$dir/countd.log" 2>&1 &
countd=$! && pids+=("$countd")
mkdir "$dir/redis" "$dir/pg"
redis-server --port $redis --bind 127.0.0.1 --dir "$dir/redis" --save '' --appendonly yes --appendfsync always \
  --auto-aof-rewrite-percentage 0 >"$dir/redis.log" 2>&1 &
redis_pid=$! && pids+=("$redis_pid")
as_pg=() bindir=$(pg_config --bindir 2>/dev/null || ls -d /usr/lib/postgresql/*/bin | tail -1)
if [ "$(id -u)" = 0 ]; then as_pg=(setpriv --reuid=postgres --regid="$(id -g postgres)" --clear-groups) && chown postgres "$dir/pg"; fi
"${as_pg[@]}" "$bindir/initdb" -D "$dir/pg" -U bench -A trust >/dev/null
"${as_pg[@]}" "$bindir/postgres" -D "$dir/pg" -p $pg -k "$dir/pg" -h 127.0.0.1 -c shared_buffers=1GB -c max_connections=100 >"$dir/pg.log" 2>&1 &
pg_pid=$! && pids+=("$pg_pid")
psql=(psql -q -h 127.0.0.1 -p $pg -U bench postgres)
bin/countctl --addr $url status --wait 60s >/dev/null
until redis-cli -p $redis ping >/dev/null 2>&1 && "${psql[@]}" -c 'SELECT 1' >/dev/null 2>&1; do sleep 0.2; done
"${psql[@]}" <<EOF
CREATE TABLE likes (post bigint, member bigint, at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (post, member));
CREATE TABLE counts (post bigint PRIMARY KEY, likes bigint NOT NULL) WITH (fillfactor = 50);
INSERT INTO counts SELECT n, 0 FROM generate_series(1, $POSTS) n;
VACUUM ANALYZE;
EOF
cat >"$dir/like.sql" <<EOF
\\set post random(1, $POSTS)
\\set member random(1, 10000000)
WITH new AS (INSERT INTO likes VALUES (:post, :member) ON CONFLICT DO NOTHING RETURNING post)
UPDATE counts SET likes = likes + 1 FROM new WHERE counts.post = new.post;
EOF

# countd_once DO ARGS…: prints "ops/s p50_ms p99_ms cpu_us" of an op. sadd uses the Redis port.
countd_once() {
  local before after out port=$http
  [ "$1" != sadd ] || port=$resp
  before=$(cpu_ticks "$countd")
  out=$("$dir/likes" -addr "127.0.0.1:$port" -posts "$POSTS" -for "${SECONDS_EACH}s" -do "$@")
  after=$(cpu_ticks "$countd")
  per_op "$out" $((after - before))
}
per_op() { awk -v s="$SECONDS_EACH" -v t="$2" '{printf "%.0f %s %s %.2f\n", $1 / s, $4, $5, t * 10000 / $1}' <<<"$1"; }

redis_once() {
  local before after out
  before=$(cpu_ticks "$redis_pid")
  out=$("$dir/likes" -addr 127.0.0.1:$redis -posts "$POSTS" -for "${SECONDS_EACH}s" -do redis)
  after=$(cpu_ticks "$redis_pid")
  per_op "$out" $((after - before))
}

# pg_once: CPU is that of the sessions that have ended. pgbench logs each latency in µs.
pg_once() {
  local before after n
  rm -f "$dir"/pglog*
  before=$(awk '{print $16 + $17}' "/proc/$pg_pid/stat")
  n=$(pgbench -n -h 127.0.0.1 -p $pg -U bench -M prepared -c 64 -j 2 -T "$SECONDS_EACH" -l --log-prefix="$dir/pglog" -f "$dir/like.sql" postgres |
    awk -F': ' '/actually processed/ {print $2 + 0}')
  sleep 0.5
  after=$(awk '{print $16 + $17}' "/proc/$pg_pid/stat")
  cat "$dir"/pglog* | awk '{print $3}' | sort -n | awk -v s="$SECONDS_EACH" -v n="$n" -v t=$((after - before)) \
    '{v[NR] = $1} END {printf "%.0f %.3f %.3f %.2f\n", n / s, v[int(NR / 2)] / 1000, v[int(NR * 0.99)] / 1000, t * 10000 / n}'
}

row() { # row LABEL FILE
  local c out="| $1 |"
  for c in 1 2 3 4; do out+=" $(awk -v c=$c '{print $c}' "$dir/$2.runs" | spread) |"; done
  echo "$out"
}

tables_bytes() { find "$dir/countd/members" -name '*.sst' -printf '%s\n' | awk '{n += $1} END {print n + 0}'; }

echo "$(date -u +%F), $(nproc) cores, $(awk -F': ' '/model name/ {print $2; exit}' /proc/cpuinfo), $(redis-server --version | cut -d' ' -f3), $("$bindir/postgres" --version), ${RUNS} runs of ${SECONDS_EACH} s, $SHARDS shards, load before: $(cut -d' ' -f1-3 /proc/loadavg)"

# Make the rows of the posts first, so that their memory does not count for the sets.
note "$POSTS posts"
"$dir/likes" -addr 127.0.0.1:$http -posts "$POSTS" -do incr -batch 1000 -conns 4 -n $((POSTS * 3)) >/dev/null
at_rest "$countd" && sleep "$REST"
memory=$(anon_bytes "$countd")
note "$PAIRS likes, 100 in a request"
before=$(cpu_ticks "$countd") began=$(date +%s%N)
read -r ops pairs _ < <("$dir/likes" -addr 127.0.0.1:$http -posts "$POSTS" -do like -recent -batch 100 -conns 16 -n "$PAIRS")
fill=$(awk -v n="$ops" -v ns=$(($(date +%s%N) - began)) 'BEGIN {printf "%.0f", n * 1e9 / ns}')
after=$(cpu_ticks "$countd")
at_rest "$countd" && sleep "$REST"
memory=$(($(anon_bytes "$countd") - memory)) settled=$(cpu_ticks "$countd")
disk=$(tables_bytes)

for ((i = 0; i < RUNS; i++)); do
  note "run $((i + 1)) of $RUNS"
  countd_once incr -conns 64 >>"$dir/incr.runs"
  countd_once like -conns 64 >>"$dir/like.runs"
  countd_once sadd -conns 64 >>"$dir/sadd.runs"
  redis_once >>"$dir/redis.runs"
  pg_once >>"$dir/pg.runs"
  countd_once like -recent -batch 100 -conns 16 >>"$dir/batch.runs"
  at_rest "$countd"
  for what in any recent; do
    recent=() && [ "$what" = any ] || recent=(-recent)
    countd_once page -conns 64 "${recent[@]}" >>"$dir/page-$what.runs"
    countd_once check -conns 64 "${recent[@]}" >>"$dir/check-$what.runs"
  done
done

printf '\n| likes | per second | p50 ms | p99 ms | server CPU µs |\n|---|---|---|---|---|\n'
row "countd, plain increments, 64 in flight" incr
row "countd, single likes, 64 in flight" like
row "countd, single likes at its Redis port (SADD), 64 in flight" sadd
row "Redis, MULTI of SADD, SCARD, SADD, 64 in flight" redis
row "PostgreSQL, pair and count in a transaction, 64 clients" pg
row "countd, 100 in a request, 16 in flight" batch
row "countd, pages of 20 of any posts" page-any
row "countd, with the user's likes" check-any
row "countd, pages of 20 of new posts" page-recent
row "countd, with the user's likes" check-recent

printf '\n| | | goal |\n|---|---|---|\n'
printf '| single likes / plain increments | %s | ≥ 0.6 |\n' "$(ratio "$(median like 1)" "$(median incr 1)")"
printf '| single likes / PostgreSQL; at the Redis port | %s; %s | ≥ 5 |\n' "$(ratio "$(median like 1)" "$(median pg 1)" %.1f)" "$(ratio "$(median sadd 1)" "$(median pg 1)" %.1f)"
printf '| single likes / Redis | %s | |\n' "$(ratio "$(median like 1)" "$(median redis 1)")"
printf '| likes a second, 100 in a request, into an empty node | %s | ≥ 150,000 |\n' "$fill"
printf '| the same, into %s pairs | %s | |\n' "$pairs" "$(median batch 1)"
printf '| server CPU of one of them, µs; with what follows at rest | %s; %s | |\n' "$(ratio $(((after - before) * 10000)) "$ops")" "$(ratio $(((settled - before) * 10000)) "$ops")"
for what in any recent; do
  printf '| a check of 20 posts (%s) beyond the page, CPU µs | %s | ≤ 25 |\n' "$what" "$(awk -v a="$(median "check-$what" 4)" -v b="$(median "page-$what" 4)" 'BEGIN {printf "%.1f", a - b}')"
done
printf '| bytes on disk of a pair; of a direction | %s; %s | ≤ 10 |\n' "$(ratio "$disk" "$pairs")" "$(ratio "$disk" $((pairs * 2)))"
printf '| bytes of memory of a pair, the cache of at most 64 MiB included | %s | ≤ 0.5 |\n' "$(ratio $memory "$pairs")"

# The same number of likes per post as in countd.
redis-cli -p $redis flushall >/dev/null
redis_pairs=$("$dir/likes" -addr 127.0.0.1:$redis -posts 20000 -do redis -recent -n 200000 | awk '{print $2}')
printf '| bytes of memory of a pair in Redis, both directions | %s | |\n' "$(ratio "$(redis-cli -p $redis info memory | awk -F: '/^used_memory:/ {print $2 + 0}')" "$redis_pairs" %.0f)"
printf '\nLoad after: %s\n' "$(cut -d' ' -f1-3 /proc/loadavg)"
