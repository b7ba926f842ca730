#!/usr/bin/env bash
# Runs three nodes of one cluster on loopback until Ctrl-C. Their data is in a temporary directory.
# CLUSTER_PORT chooses other ports than 7400 to 7422.
set -euo pipefail
cd "$(dirname "$0")/.."

base=${CLUSTER_PORT:-7400}
nodes=3
ports=()
for ((i = 0; i < nodes; i++)); do
  ports+=($((base + 10 * i)) $((base + 10 * i + 1)) $((base + 10 * i + 2)))
done
for p in "${ports[@]}"; do
  if (exec 3<>"/dev/tcp/127.0.0.1/$p") 2>/dev/null; then
    echo "Port $p is taken. Try: CLUSTER_PORT=$((base + 1000)) make cluster" >&2
    exit 1
  fi
done

dir=$(mktemp -d)
pids=()
cleanup() {
  trap '' INT TERM # make and the terminal may each send a signal
  trap - EXIT
  if [ ${#pids[@]} -gt 0 ]; then
    echo "Stopping the nodes."
    kill -TERM "${pids[@]}" 2>/dev/null || true
    wait "${pids[@]}" 2>/dev/null || true
  fi
  rm -rf "$dir"
}
trap cleanup EXIT
trap 'exit 0' INT TERM

join=127.0.0.1:$((base + 2)),127.0.0.1:$((base + 12)),127.0.0.1:$((base + 22))
set -m # a process group for each: Ctrl-C reaches this script, which then stops them
for ((i = 1; i <= nodes; i++)); do
  p=$((base + 10 * (i - 1)))
  bin/countd --data-dir "$dir/n$i" --node-id "n$i" --zone "z$i" \
    --http-addr "127.0.0.1:$p" --cluster-addr "127.0.0.1:$((p + 1))" --gossip-addr "127.0.0.1:$((p + 2))" \
    --join "$join" --bootstrap-expect $nodes 2>"$dir/log$i" &
  pids+=($!)
done
set +m

for ((i = 1; i <= nodes; i++)); do
  url=http://127.0.0.1:$((base + 10 * (i - 1)))
  bin/countctl --addr "$url" status --wait 60s >/dev/null || { cat "$dir"/log* >&2; exit 1; }
  echo "n$i runs at $url, process ${pids[$((i - 1))]}, its log is $dir/log$i"
done

cat <<TEXT

They are one cluster until Ctrl-C. Open http://127.0.0.1:$base/ui/ in a browser, or try, in another terminal:
  bin/countctl --addr http://127.0.0.1:$base status
  curl -X POST http://127.0.0.1:$((base + 10))/v1/counters/posts/incr -d '{"ops":[{"id":"1","add":{"like":1}}]}'
  curl 'http://127.0.0.1:$((base + 20))/v1/counters/posts/1?consistency=linearizable'
  kill -9 ${pids[0]}; bin/countctl --addr http://127.0.0.1:$((base + 10)) status
TEXT
wait
