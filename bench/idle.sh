#!/usr/bin/env bash
# Measures idle nodes of one cluster by the number of its groups, and prints Markdown. Needs
# the built binaries (make build).
#
#   bench/idle.sh > out.md      SETS="24 96" NODES=3 SECONDS_EACH=30 STORE=shared BIN=bin BASE_PORT=27600 by default
#
# CPU is user and system time of a process, in per cent of a core. Connections, bytes and
# segments are of TCP, without gossip's pings over UDP; a segment is about one message. Each
# column has the mean of all nodes and the largest. Everything listens on loopback and stops at the
# end.
set -euo pipefail
cd "$(dirname "$0")/.."
. bench/common.sh

SECONDS_EACH=${SECONDS_EACH:-30}
NODES=${NODES:-3}
STORE=${STORE:-shared}
BIN=${BIN:-bin}
base=${BASE_PORT:-27600}
use_scratch

# traffic PID: prints the number of a process's connections, and the bytes and the segments with
# data that they sent.
traffic() {
  ss -Htinp state established | awk -v pid="pid=$1," '
    /users:/ {own = index($0, pid) > 0; n += own; next}
    own {for (i = 1; i <= NF; i++) {split($i, f, ":"); if (f[1] == "bytes_sent") b += f[2]; if (f[1] == "data_segs_out") d += f[2]}}
    END {print n + 0, b + 0, d + 0}'
}

# sample: prints CPU ticks, connections, bytes and segments of each process. measure subtracts two
# samples.
sample() {
  local pid
  for pid in "${pids[@]}"; do echo "$(cpu_ticks "$pid") $(traffic "$pid")"; done
}

# measure GROUPS SHARDS…: measures nodes with the catalog, the board and the shards of four
# keyspaces.
measure() {
  local groups=$1 n p join="" keyspace args=() before after
  shift
  for keyspace in posts users unread feed; do args+=(--shards "$keyspace=$1") && shift; done
  for n in $(seq "$NODES"); do join+="${join:+,}127.0.0.1:$((base + 10 * n + 2))"; done
  for n in $(seq "$NODES"); do
    p=$((base + 10 * n))
    "$BIN/countd" --data-dir "$dir/$groups-$n" --log-level warn --log-store "$STORE" "${args[@]}" \
      --http-addr 127.0.0.1:$p --cluster-addr 127.0.0.1:$((p + 1)) --gossip-addr 127.0.0.1:$((p + 2)) \
      --node-id "n$n" --join "$join" --bootstrap-expect "$NODES" >"$dir/$groups-$n.log" 2>&1 &
    pids+=("$!")
  done
  for n in $(seq "$NODES"); do "$BIN/countctl" --addr "http://127.0.0.1:$((base + 10 * n))" status --wait 90s >/dev/null; done
  sleep 15 # until the leaders are spread over the nodes
  before=$(sample)
  sleep "$SECONDS_EACH"
  after=$(sample)
  paste -d' ' <(echo "$before") <(echo "$after") | awk -v s="$SECONDS_EACH" -v groups="$groups" -v nodes="$NODES" '
    {x[1] = ($5 - $1) / s; x[2] = $6; x[3] = ($7 - $3) / s / 1000; x[4] = ($8 - $4) / s
     for (i = 1; i <= 4; i++) {sum[i] += x[i]; if (x[i] > most[i]) most[i] = x[i]}}
    END {printf "| %d | %d |", nodes, groups; for (i = 1; i <= 4; i++) printf " %.1f, %.1f |", sum[i] / NR, most[i]; print ""}'
  stop
}

echo "$(date -u +%F), $(nproc) cores, ${SECONDS_EACH} s, --log-store ${STORE}, load before $(cut -d' ' -f1 /proc/loadavg)"
printf '\n| nodes | groups | %% of a core | connections | kB/s sent | segments/s |\n|---|---|---|---|---|---|\n'
for set in ${SETS:-24 96}; do
  case $set in
  24) measure 24 7 7 4 4 ;;
  96) measure 96 32 32 15 15 ;;
  110) measure 110 27 27 27 27 ;;
  esac
done
