// Package rankings owns two rankings of the rows of one shard. HotLists rank ids by their gains in the
// last minute, hour and day. LargestLists rank ids by their counts.
//
// Hot lists summarise the applied increments in buckets of time, within bounded memory. They never
// read a clock or a row. The time of a bucket is the log's time. So replicas that applied the same
// entries have equal summaries. DESIGN.md proves the bounds of the error. Lists of the largest
// counts are exact, and differ between replicas.
//
// Invariant: in every bucket, the true gain of a cell differs from the cell's field gained by at
// most its field doubt. Any key without a cell in a column gained or lost at most the column's
// bound.
package rankings
