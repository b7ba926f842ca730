#!/usr/bin/env bash
# Makes demo/posts.csv.gz out of the whole set (id,created_at,reposts,comments,likes): every 8th
# post, and the 100 most liked ones, so that the most liked posts of the sample are those of the
# set. Equal input gives equal output.
#
#   demo/thin.sh weibo_counts.csv.gz > demo/posts.csv.gz
set -euo pipefail
export LC_ALL=C

whole=$1
gzip -dc "$whole" | awk -F, '
  NR == FNR { most[$1]; next }
  FNR == 1 || FNR % 8 == 2 || $1 in most
' <(gzip -dc "$whole" | tail -n +2 | sort -t, -k5,5nr -k1,1n | head -n 100 || true) - | gzip -9n
