// Package cold stores rows on disk: packed blocks of some 4 KiB in Pebble, written once and never
// changed. It owns the block format, the generations of every shard of a node, and the cache of
// blocks. It also removes generations, and bounds the concurrent reads. It never sees later changes
// of the rows: an engine.Table keeps changed rows in memory, over a generation. It also stores
// records, which are bytes under a key, for data other than rows.
//
// Invariant: the package returns a row only from a block whose checksum is right. The checksum
// covers the block's key in Pebble too. A read of a missing or damaged block returns ErrDamaged,
// never a row of zeros.
package cold
