// Package dedup owns the request memory of a Raft group: which requests the group has
// applied, by the client's key or by producer and number, and for how long it remembers
// them. It also owns the identity of a request and its form in a log entry.
//
// It never sees what a request does, and never reads a clock: the log's own time, which a
// leader stamps into entries, moves it.
//
// Invariant: the memory is a function of the log. Replicas that applied the same entries
// hold the same bytes of it, and no request that Judge called Applied is Applied again.
package dedup
