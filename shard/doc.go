// Package shard owns the Raft groups of one node. It splits requests by shard, proposes writes, reads
// rows from the replicas here or on other nodes, and opens and deletes replicas as the catalog wants.
//
// It never decides where replicas go (package cluster does) or what a log entry means (package raftfsm
// does), and it knows no protocol of clients.
//
// Invariant: a write is acknowledged only after a majority of its group's voters has durably stored
// its entry, and each request is applied at most once.
package shard
