#!/usr/bin/env bash
# Measures the processor time of three idle nodes of one cluster by the number of their
# groups, and prints Markdown. Needs the built binaries (make build).
#
#   bench/idle.sh > out.md      SETS="24 96" SECONDS_EACH=30 STORE=shared BIN=bin BASE_PORT=27600 by default
#
# CPU is user and system time of each process, in per cent of a core. Everything listens
# on loopback and stops at the end.
set -euo pipefail
cd "$(dirname "$0")/.."
. bench/common.sh

SECONDS_EACH=${SECONDS_EACH:-30}
STORE=${STORE:-shared}
BIN=${BIN:-bin}
base=${BASE_PORT:-27600}
use_scratch

# measure GROUPS SHARDS…: three nodes with the catalog, the board and the shards of four keyspaces.
measure() {
  local groups=$1 n p join="" keyspace args=() before=() after=() row
  shift
  for keyspace in posts users unread feed; do args+=(--shards "$keyspace=$1") && shift; done
  for n in 1 2 3; do join+="${join:+,}127.0.0.1:$((base + 10 * n + 2))"; done
  for n in 1 2 3; do
    p=$((base + 10 * n))
    "$BIN/countd" --data-dir "$dir/$groups-$n" --log-level warn --log-store "$STORE" "${args[@]}" \
      --http-addr 127.0.0.1:$p --cluster-addr 127.0.0.1:$((p + 1)) --gossip-addr 127.0.0.1:$((p + 2)) \
      --node-id "n$n" --join "$join" --bootstrap-expect 3 >"$dir/$groups-$n.log" 2>&1 &
    pids+=("$!")
  done
  for n in 1 2 3; do "$BIN/countctl" --addr "http://127.0.0.1:$((base + 10 * n))" status --wait 60s >/dev/null; done
  sleep 15 # leaders spread
  for n in 0 1 2; do before+=("$(cpu_ticks "${pids[$n]}")"); done
  sleep "$SECONDS_EACH"
  for n in 0 1 2; do after+=("$(cpu_ticks "${pids[$n]}")"); done
  row="| $groups |"
  for n in 0 1 2; do row+=" $(awk -v t=$((after[n] - before[n])) -v s="$SECONDS_EACH" 'BEGIN {printf "%.2f", t / s}') |"; done
  echo "$row"
  stop
}

echo "$(date -u +%F), $(nproc) cores, ${SECONDS_EACH} s, --log-store ${STORE}, load before $(cut -d' ' -f1 /proc/loadavg)"
printf '\n| groups | first node, %% of a core | second | third |\n|---|---|---|---|\n'
if [[ ${SETS:-24 96} == *24* ]]; then measure 24 7 7 4 4; fi
if [[ ${SETS:-24 96} == *96* ]]; then measure 96 32 32 15 15; fi
