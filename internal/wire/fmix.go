package wire

// MixID is the finalizer of MurmurHash3: a bijection in which every bit of the id affects every bit of
// the result. It must never change, because it determines the shards of rows on disk (docs/FORMAT.md).
func MixID(id uint64) uint64 {
	id = (id ^ id>>33) * 0xff51afd7ed558ccd
	id = (id ^ id>>33) * 0xc4ceb9fe1a85ec53
	return id ^ id>>33
}
