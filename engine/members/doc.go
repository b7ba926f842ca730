// Package members stores sets of members on this node's disk, such as the users who liked a post. Each column
// of a row may have a set. The package serves all shards of the node. It owns one Pebble, the order of its
// keys, and the data that a restart and another replica need. It never counts, and neither a clock nor chance
// affects its decisions. The contents of a group are a function of the log entries that it was given, up to the
// index that it stores with them.
//
// Invariant: an entry's changes, its outcome and its index are in one batch.
package members
