#!/usr/bin/env bash
# Runs countd with the sample of real posts beside this file until Ctrl-C. Its data is in a
# temporary directory. DEMO_PORT chooses other ports than 7400 to 7403.
set -euo pipefail
cd "$(dirname "$0")/.."

port=${DEMO_PORT:-7400}
url=http://127.0.0.1:$port
export COUNTCTL_ADDR=$url

for p in "$port" $((port + 1)) $((port + 2)) $((port + 3)); do
  if (exec 3<>"/dev/tcp/127.0.0.1/$p") 2>/dev/null; then
    echo "Port $p is taken. Try: DEMO_PORT=$((port + 1000)) make demo" >&2
    exit 1
  fi
done

dir=$(mktemp -d)
server=
cleanup() {
  trap '' INT TERM # make and the terminal may each send a signal
  trap - EXIT
  if [ -n "$server" ]; then
    kill -TERM "$server" 2>/dev/null || true
    wait "$server" || true
  fi
  rm -rf "$dir"
}
trap cleanup EXIT
trap 'exit 0' INT TERM

set -m # a process group of its own: Ctrl-C reaches this script, which then stops it
bin/countd --data-dir "$dir/data" --http-addr "127.0.0.1:$port" --log-level warn \
  --cluster-addr "127.0.0.1:$((port + 1))" --gossip-addr "127.0.0.1:$((port + 2))" --redis-addr "127.0.0.1:$((port + 3))" 2>"$dir/log" &
server=$!
set +m
bin/countctl status --wait 20s >/dev/null || { cat "$dir/log" >&2; exit 1; }
printf 'Open %s/ui/ in a browser.\n\n' "$url"

cp demo/posts.csv.gz "$dir/"
echo "Importing $(gzip -dc demo/posts.csv.gz | tail -n +2 | wc -l | tr -d ' ') real posts:"
bin/countctl import "$dir/posts.csv.gz" --map reposts=repost,comments=comment,likes=like

printf '\nThe ten most liked posts:\n'
bin/countctl top --column like -n 10

printf '\nA page of posts by id:\n'
# shellcheck disable=SC2046 # ids are digits
bin/countctl mget $(gzip -dc demo/posts.csv.gz | cut -d, -f1 | grep -B 19 '^4624358914132406$')

# Followers and authors on Twitter. The newest of the posts are published by 20 authors, in turn.
gzip -dc demo/edges.csv.gz | tail -n +2 >"$dir/edges"
reader=$(awk -F, '{if (++n[$1] > most) {most = n[$1]; user = $1}} END {print user}' "$dir/edges")
awk -F, -v user="$reader" '$1 == user {print $2}' "$dir/edges" >"$dir/followees"
# shellcheck disable=SC2046 # ids are digits
bin/countctl feed reset "$reader" $(cat "$dir/followees") >/dev/null
gzip -dc demo/posts.csv.gz | tail -n +2 | cut -d, -f1 | sort -n | tail -n 40 |
  awk 'NR == FNR {if (FNR <= 20) author[FNR] = $1; next} {print author[1 + FNR % 20], $1}' "$dir/followees" - |
  while read -r author post; do bin/countctl outbox add "$author" "$post" >/dev/null; done

printf '\nThe timeline of user %s, who follows %s authors, with the counts of the posts:\n' "$reader" "$(wc -l <"$dir/followees" | tr -d ' ')"
bin/countctl timeline "$reader" --counts posts --limit 10

printf '\nRows and bytes a row (posts that have only zeros take no row):\n'
bin/countctl status

cat <<TEXT

countd runs at $url until Ctrl-C. Try, in another terminal:
  curl $url/v1/counters/posts/4624358914132406
  bin/countctl --addr $url incr 4624358914132406 like=1
  redis-cli -p $((port + 3)) INCR posts:4624358914132406:like
  curl "$url/v1/timeline/$reader?counts=posts"
TEXT
wait "$server"
