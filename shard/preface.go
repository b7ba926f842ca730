package shard

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

// Every connection to the cluster port begins with a preface that says whose
// it is; what follows it belongs to that protocol. Integers are big endian.
//
//	┌──────────────┬───────────┬────────┬────────────┬─────────┬─────────┐
//	│ magic "CNTD" │ version 1 │  kind  │ cluster id │  group  │ crc32c  │
//	│   4 bytes    │  1 byte   │ 1 byte │  16 bytes  │ 4 bytes │ 4 bytes │
//	└──────────────┴───────────┴────────┴────────────┴─────────┴─────────┘
//
// crc32c covers the 26 bytes before it.
const (
	prefaceVersion = 1
	prefaceBytes   = 30
)

var prefaceMagic = [4]byte{'C', 'N', 'T', 'D'}

// The kinds of connections.
const (
	kindRaft = 1 // between two replicas of one group
	kindCall = 2 // from a node that calls another; the group is 0
)

// errBadPreface is returned for a connection that is not one of this cluster
// in a version that this node speaks.
var errBadPreface = errors.New("not a preface of this version")

// preface is what a connection says of itself.
type preface struct {
	kind    uint8
	cluster [16]byte
	group   uint32
}

// appendPreface appends p's bytes to dst.
func appendPreface(dst []byte, p preface) []byte {
	start := len(dst)
	dst = append(dst, prefaceMagic[:]...)
	dst = append(dst, prefaceVersion, p.kind)
	dst = append(dst, p.cluster[:]...)
	dst = binary.BigEndian.AppendUint32(dst, p.group)
	return binary.BigEndian.AppendUint32(dst, crc32.Checksum(dst[start:], castagnoli))
}

// parsePreface reads exactly one preface.
func parsePreface(b []byte) (preface, error) {
	switch {
	case len(b) != prefaceBytes:
		return preface{}, fmt.Errorf("%w: %d bytes", errBadPreface, len(b))
	case [4]byte(b) != prefaceMagic:
		return preface{}, fmt.Errorf("%w: it begins with %q", errBadPreface, b[:4])
	case b[4] != prefaceVersion:
		return preface{}, fmt.Errorf("%w: version %d", errBadPreface, b[4])
	case binary.BigEndian.Uint32(b[26:]) != crc32.Checksum(b[:26], castagnoli):
		return preface{}, fmt.Errorf("%w: wrong checksum", errBadPreface)
	}
	return preface{kind: b[5], cluster: [16]byte(b[6:22]), group: binary.BigEndian.Uint32(b[22:])}, nil
}
