// Package raftfsm contains the common part of the state machines of all kinds of shards. It decodes
// and applies each log entry, and finds the repeated requests in the entry. A Machine is one shard.
// Each kind has a package of its own, which package kinds lists. Package codec frames entries and
// snapshots, package dedup remembers requests, and package catalog is the state machine of the
// cluster.
//
// A state machine depends on its log alone. It never reads a clock or a random number, and reads no
// file except the rows, bodies and sets that it moved to disk. A replica that cannot read such data
// is stuck: it applies nothing more until it restores a snapshot of another replica.
//
// A committed entry that cannot be read means a damaged log, or a program version that must not run
// here. Continuing would make this replica differ from the others, so Apply panics with a
// *codec.EntryError and the process ends.
//
// Invariant: replicas that applied the same entries have equal state.
package raftfsm
