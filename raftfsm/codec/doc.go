// Package codec owns the bytes around the contents of the Raft log: the frames of log entries and
// of snapshot streams, and their checksums. It also owns the numbers of sections and of kinds of
// shards. docs/FORMAT.md draws the frames.
//
// Package codec never reads a section's payload: the package that owns the section does.
//
// Invariant: a section that OpenEntry, NextSection or StreamReader.Next returns has the length that
// its frame states. If its checksum was verified, its bytes are those that were written. No number
// in this package ever changes its meaning.
package codec
