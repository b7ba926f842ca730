// Package shard owns the Raft groups of one node: it splits requests by shard, proposes
// writes, reads rows here or on the replica of another node, and moves replicas as the
// catalog says.
//
// It never decides where replicas go (package cluster does) or what a log entry means
// (package raftfsm does), and it knows no protocol of clients.
//
// Invariant: a write is acknowledged only after a majority of its group's voters has
// durably stored its entry, and each request is applied at most once.
package shard
