// Package codec owns the bytes around the contents of the Raft log: the frames of log entries and
// of snapshot streams, and their checksums. It also owns the numbers of sections and of kinds of
// shards. docs/FORMAT.md draws the frames.
//
// It never reads a section's payload: the package that owns the section does.
//
// Invariant: a section that OpenEntry, NextSection or StreamReader.Next returns has the length that
// its frame states. Once its checksum was verified, it has the bytes that were written. No number
// in this package ever changes its meaning.
package codec
