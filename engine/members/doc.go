// Package members stores sets of members on this node's disk, such as the users who liked a post.
// Each column of a row may have a set. The package serves all shards of the node. It owns one
// Pebble store, the format of its keys, and the data for restarts and new replicas. It stores no
// counts, and neither a clock nor chance affects its decisions. The contents of a group are a
// function of the log entries up to the index that is stored with them.
//
// Invariant: an entry's changes, its outcome and its index are in one batch.
package members
