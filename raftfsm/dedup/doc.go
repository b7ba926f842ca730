// Package dedup owns the request memory of a Raft group. It records which requests the group has
// applied, by the client's key or by producer and number, and how long to remember each. It also
// owns the identity of a request and its form in a log entry.
//
// It never sees the effect of a request, and never reads a clock: its only time is the log's own,
// which a leader stamps into entries.
//
// Invariant: the memory is a function of the log. Replicas that applied the same entries have the
// same bytes in their memory. Judge returns Applied once for a request that the memory holds. It
// also refuses older numbers of a producer whose highest number it holds, and every key that
// contains a time before the horizon. A repeat can count as new only if one of these holds:
//
//   - its key contains no time;
//   - its producer was forgotten, and then forgottenPerProducer × ProducersMax other producers;
//   - a restore of the shard came between it and the first request.
package dedup
