// Package raftfsm owns the state machines of shards: what a log entry means to a shard of
// counters, unread numbers, feeds or the board. A Machine holds one shard; kinds has what
// the program knows of each kind. Package codec frames entries and snapshots, package
// dedup remembers requests, and package catalog is the state machine of the cluster.
//
// A state machine never sees more than its log: no clock, no random number, and no file except
// the rows that it moved to disk itself. A replica that cannot read such rows is stuck: it
// applies nothing more until it is restored from another replica.
//
// A committed entry that cannot be read means a damaged log, or a program version that
// must not run here. Continuing would make this replica differ from the others, so Apply
// panics with a *codec.EntryError and the process ends.
//
// Invariant: replicas that applied the same entries have equal state.
package raftfsm
