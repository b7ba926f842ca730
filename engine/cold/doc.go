// Package cold keeps runs of rows on disk: packed blocks of some 4 KiB in Pebble,
// written once and never changed. It owns the block format, the generations of
// every shard of a node, their removal, and the workers and the cache that read
// them. It knows nothing of what is counted meanwhile: an engine.Table holds that
// in memory, over a generation. For what has no rows it keeps records of bytes.
//
// Invariant: a row is given out only from a block whose checksum, which covers
// whose block it is too, is right. A block that is missing or damaged is an error
// that is ErrDamaged, never a row of zeros.
package cold
