// Package rankings owns two rankings of the rows of one shard: HotLists, of what ids gained in the last
// minute, hour and day, and LargestLists, of the largest counts.
//
// Hot lists are a summary of the applied increments, of bounded memory, in buckets of time. They never read
// a clock or a row. The time of a bucket is the log's, so replicas that applied the same entries have equal
// summaries. DESIGN.md has the argument and the bounds. Lists of the largest counts are exact, and differ
// between replicas.
//
// Invariant: in every bucket, the true gain of a cell in the summary differs from gained by at most doubt,
// and the true gain of any other cell of the column is within the column's bound of 0.
package rankings
