// Package engine holds one shard's counters in memory: rows of small counts
// under 64-bit ids, in hash arrays as small as their contents allow.
//
// # Structure
//
// A Table is an ordered directory of segments. A segment owns a range of ids
// and is one open-addressing hash array of cache lines. Each line is a bucket.
// For each row it has a 64-bit word with the row's first four counts, 16 bits
// each, and a tag of 4 bytes, or of 8 if the range is too wide (see geometry).
// Counts from the fifth column on stand in an array of their own. No array
// holds a pointer, so the garbage collector never scans them. A count that does
// not fit 16 bits is marked FFFF and lives in its segment's overflow table as
// an int64. An absent row reads as zeros, so a row whose counts are all zero is
// not stored.
//
// Tags are placed by bucketed cuckoo hashing (Pagh and Rodler, 2004; buckets
// after Dietzfelbinger and Weidling, 2007; the second bucket is computed from
// the tag alone as in cuckoo filters, Fan et al., 2014). A lookup reads two
// lines and no more, both at once, and a delete leaves nothing behind: there are no delete
// marks to skip, to reuse, or to shadow a second copy of an id.
//
// A segment that is no longer written may be sealed: its rows are packed into an
// immutable array (see sealed), and rows that are written later stay in the segment over
// them. Rows may also be on disk (see Generation).
//
// # Files
//
// Files depend downwards only: apply, cold, freeze, seal and melt, and snapshot on
// room; room on table, directory, salts and shape; these on segment; segment on bucket,
// overflow and tier; tier on sealed; all on page and geometry.
//
// # Concurrency
//
// One writer at a time, under Table.mu. Readers take no lock; segment.seq argues why they
// see whole rows and miss none.
//
// # Invariant
//
// Tests verify the whole structure last (Table.Check). The package reads no clock
// and no files. Each table draws one random number, which decides only the shapes of
// arrays (see salts): equal ops in equal order produce equal answers, equal digests and
// equal snapshots.
package engine
