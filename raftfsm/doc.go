// Package raftfsm is what a group's Raft log means: the format of its entries
// and snapshots (drawn in docs/FORMAT.md), and the state machines that apply
// them. A Machine holds one shard of a keyspace: Counters, Unread, Feed and Board
// say of what. Catalog holds what the cluster agrees on: keyspaces, nodes, where
// groups are to be, and the cluster version.
//
// A state machine sees its log and nothing else: no clock, no random number,
// no file but that of rows which it moved out of memory itself. Replicas that applied
// the same entries have equal state. One that cannot read such rows is stuck: it
// applies nothing more, and is to be restored from what another has.
//
// An entry that was committed and cannot be read means a damaged log or a
// version that must not have been run. Going on would make this replica differ
// from the others, so Apply panics with an *EntryError and the process ends.
package raftfsm
