// Package members stores who did it: a set of members for each column of a row, on this node's disk, for all
// shards of the node. It owns one Pebble, the order of its keys, and the data that a restart and another
// replica need. It never counts, and neither a clock nor chance affects its decisions. The contents of a
// group are a function of the log entries that it was given, up to the index that it stores with them.
//
// Invariant: an entry's changes, its outcome and its index are in one batch.
package members
