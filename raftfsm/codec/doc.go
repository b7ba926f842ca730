// Package codec owns the bytes around the contents of the Raft log: the frame of a log entry,
// the frame of a snapshot stream, their checksums, and the numbers of their sections and
// of the kinds of shards. docs/FORMAT.md draws them.
//
// It never reads a section's payload: the package that owns the section does.
//
// Invariant: a section that OpenEntry, NextSection or StreamReader.Next returns has the
// length that its frame states and, once its checksum was verified, the bytes that were
// written. No number in this package ever changes its meaning.
package codec
