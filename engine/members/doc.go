// Package members stores who did it: a set of members for each column of a row, on this
// node's disk, for all shards of the node.
//
// It owns one Pebble, the order of its keys, and what a restart and another replica need of
// it. It never counts, and it decides nothing by a clock or by chance: a group's contents are
// a function of the log entries that were given to it, up to the index that it stores with
// them. Invariant: an entry's changes, its outcome and its index are in one batch.
package members
