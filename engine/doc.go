// Package engine holds one shard's counters in memory: rows of small counts
// under 64-bit ids, in hash arrays as small as their contents allow.
//
// # Structure
//
// A Table is an ordered directory of segments. A segment owns a range of ids and is one
// open-addressing hash array. Each bucket of the array is one cache line. For each row, a bucket
// has a tag, and a 64-bit word with the row's first four counts, 16 bits each. A tag has 4 bytes,
// or 8 if the range is too wide (see geometry). Counts of the fifth and later columns are in an
// array of their own. No array holds a pointer, so the garbage collector never scans them. A count
// that does not fit 16 bits is marked FFFF and stored in its segment's overflow table as an int64.
// An absent row reads as zeros, so a row whose counts are all zero is not stored.
//
// Tags are placed by cuckoo hashing (Pagh and Rodler, 2004) with buckets (Dietzfelbinger and
// Weidling, 2007). As in cuckoo filters (Fan et al., 2014), the tag alone gives the second bucket.
// A lookup reads at most two lines, both at once. A delete leaves no tombstone. So lookups need not
// skip tombstones, and an insert finds any earlier copy of its id.
//
// A segment to which nobody writes any more may be sealed: its rows are packed into an immutable
// array (see sealed). A row that is written later is stored in the segment, and hides the sealed
// row. Rows may also be on disk (see Generation).
//
// # Files
//
// A file depends only on files that come later in this list. The files parting.go, apply.go,
// cold.go, freeze.go, seal.go, melt.go, snapshot.go and merge.go use room.go. That file uses
// table.go, directory.go, keys.go, salts.go and shape.go. These use segment.go, which uses bucket.go,
// overflow.go and tier.go. tier.go uses sealed.go. All use page.go, geometry.go and class.go.
//
// # Concurrency
//
// There is one writer at a time, which holds Table.mu. Readers take no lock. The comment of
// segment.seq explains why they see whole rows and miss none.
//
// # Invariant
//
// Table.Check checks the whole structure; most tests end with it. The package reads no clock and no
// files. Each table draws one random number, which decides only the shapes of arrays (see salts).
// So equal ops in equal order produce equal answers, equal digests and equal snapshots.
package engine
