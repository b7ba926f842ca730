// Package dedup owns the request memory of a Raft group. It records which requests the group has
// applied, by the client's key or by producer and number, and forgets them after some time. It also
// owns the identity of a request and its encoding in a log entry.
//
// It never sees the effect of a request, and never reads a clock: its only time is the log's own,
// which a leader stamps into entries.
//
// Invariant: the memory is a function of the log. Replicas that applied the same entries have the
// same bytes in their memory. Judge does not return Applied again for a request that is in the
// memory. It also refuses the older numbers of a producer whose highest number is in the memory,
// and every key that contains a time before the horizon. A repeat can count as new only in these
// cases:
//
//   - its key contains no time, and was forgotten;
//   - its producer was forgotten, and later also forgottenPerProducer × ProducersMax other
//     producers;
//   - the shard was restored between the first request and the repeat.
package dedup
