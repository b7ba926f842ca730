# shellcheck shell=bash
# Functions that the scripts of this directory share. The scripts source this file.

# The number of shards of each keyspace of countd.
SHARDS=${SHARDS:-1}
# shellcheck disable=SC2034 # the script that sources this file uses it
shard_args=(--shards "posts=$SHARDS" --shards "users=$SHARDS" --shards "unread=$SHARDS" --shards "feed=$SHARDS")

# use_scratch: makes the directory $dir. When the script ends, it stops the processes of the
# array pids and removes the directory.
use_scratch() {
  dir=$(mktemp -d)
  pids=()
  trap 'stop; rm -rf "$dir"' EXIT
}

# stop: ends the processes of the array pids and empties it.
stop() {
  [ ${#pids[@]} -eq 0 ] || kill "${pids[@]}" 2>/dev/null || true
  wait 2>/dev/null || true
  pids=()
}

# cpu_ticks PID…: prints the sum of user and system time of the processes, in clock ticks.
cpu_ticks() {
  local sum=0 pid
  for pid in "$@"; do sum=$((sum + $(awk '{print $14 + $15}' "/proc/$pid/stat"))); done
  echo "$sum"
}

# anon_bytes PID: prints the anonymous resident memory of the process.
anon_bytes() { awk '/^RssAnon/ {print $2 * 1024}' "/proc/$1/status"; }

# at_rest PID…: waits until the processes have finished the work that a load left behind, such as
# snapshots: until each takes under 5 % of a core. It waits for two minutes at most.
at_rest() {
  local was now i
  for ((i = 0; i < 60; i++)); do
    was=$(cpu_ticks "$@")
    sleep 2
    now=$(cpu_ticks "$@")
    [ $((now - was)) -ge $((10 * $#)) ] || return 0
  done
  echo "$(date +%T) processes $* are not at rest" >&2
}

# steady PID: waits until a process at rest has returned memory to the system, and its memory
# changes by less than 1 % in 20 s. Waits for 6 minutes at most.
steady() {
  local was=0 now
  sleep 45
  for _ in $(seq 15); do
    now=$(anon_bytes "$1")
    awk -v a="$was" -v b="$now" 'BEGIN {exit !(a - b < b / 100 && b - a < b / 100)}' && return
    was=$now && sleep 20
  done
}

# posts_digests URL: prints the digest of each shard of posts, from the node at URL.
posts_digests() { curl -s "$1/v1/cluster" | tr '{' '\n' | grep '"keyspace":"posts"' | grep -o '"\(shard\|digest\)":[^,]*'; }

# spread: prints the median (smallest–largest) of the numbers on standard input. If the input is a
# dash, for no measurement, it prints a dash.
spread() { sort -g | awk '{v[NR]=$1} END {if (v[1] == "-") printf "–"; else printf "%.6g (%.6g–%.6g)", v[int((NR+1)/2)], v[1], v[NR]}'; }
