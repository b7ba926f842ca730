// Package shard owns the Raft groups of one node. It splits requests by shard, proposes writes,
// and reads rows from replicas of this node and others. It opens and deletes replicas as the
// catalog wants.
//
// It never decides which nodes hold replicas (package cluster does), interprets a log entry
// (package raftfsm does), or speaks a protocol of clients.
//
// Invariant: a write is acknowledged only after a majority of its group's voters has durably stored
// its entry, and each request is applied at most once.
package shard
