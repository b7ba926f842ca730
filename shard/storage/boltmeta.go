package storage

import (
	"encoding/binary"
	"hash/fnv"
	"io"
)

// boltMeta is the content of a meta page.
type boltMeta struct {
	pageSize int64
	root     uint64 // page of the bucket of buckets
	freelist uint64
	pages    uint64 // only pages below this number may be in use
	txid     uint64
}

// readBoltMetas returns the newer meta. It refuses a file with one damaged meta page: bolt would
// fall back to the previous transaction, and so lose the last acknowledged entry or a vote. A
// crash leaves no damaged meta page, because the 64 bytes of a meta are within one sector.
func readBoltMetas(file io.ReaderAt, size int64) (boltMeta, error) {
	first, err := readBoltMeta(file, 0)
	if err != nil {
		return boltMeta{}, err
	}
	second, err := readBoltMeta(file, first.pageSize)
	if err != nil {
		return boltMeta{}, err
	}
	newer := first
	if second.txid > first.txid {
		newer = second
	}
	if pages := uint64(size / first.pageSize); newer.pages > pages || second.pageSize != first.pageSize {
		return boltMeta{}, boltDamage("the file has %d of its %d pages", pages, newer.pages)
	}
	return newer, nil
}

func readBoltMeta(file io.ReaderAt, offset int64) (boltMeta, error) {
	var b [boltMetaBytes]byte
	if _, err := file.ReadAt(b[:], offset+boltPageHead); err != nil {
		return boltMeta{}, boltDamage("cannot read the meta page at %d: %v", offset, err)
	}
	sum := fnv.New64a()
	sum.Write(b[:boltMetaBytes-8])
	m := boltMeta{
		pageSize: int64(binary.LittleEndian.Uint32(b[8:])),
		root:     binary.LittleEndian.Uint64(b[16:]),
		freelist: binary.LittleEndian.Uint64(b[32:]),
		pages:    binary.LittleEndian.Uint64(b[40:]),
		txid:     binary.LittleEndian.Uint64(b[48:]),
	}
	if binary.LittleEndian.Uint32(b[:]) != boltMetaMagic ||
		binary.LittleEndian.Uint64(b[boltMetaBytes-8:]) != sum.Sum64() ||
		m.pageSize < 1<<10 || m.pageSize > boltPageSizeMax {
		return boltMeta{}, boltDamage("the meta page at %d", offset)
	}
	return m, nil
}
