package rpc

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

// Every connection to the cluster port begins with a preface that identifies its protocol and
// addressee. The bytes after it belong to that protocol. Integers are big endian.
//
//	┌──────────────┬───────────┬────────┬────────────┬─────────┬─────────┬────────┬───────────┬─────────┐
//	│ magic "CNTD" │ version 1 │  kind  │ cluster id │  group  │   to    │ length │   name    │ crc32c  │
//	│   4 bytes    │  1 byte   │ 1 byte │  16 bytes  │ 4 bytes │ 8 bytes │ 1 byte │ 0–32 bytes│ 4 bytes │
//	└──────────────┴───────────┴────────┴────────────┴─────────┴─────────┴────────┴───────────┴─────────┘
//
// name is the --cluster-name of the node. crc32c covers all bytes before it. The field "to" is the
// addressee, or 0 for any. It is the first 8 bytes of the SHA-256 of a replica's Raft id (kindRaft)
// or of a node's key (all other kinds). A node may have another node's former address, and a
// replica may have replaced a deleted one. The answers of such a successor must not count as those
// of the predecessor.
const (
	prefaceVersion   = 1
	prefaceHeadBytes = 35 // before the name
	prefaceBytes     = prefaceHeadBytes + crc32.Size
)

// tlsHandshake is the first byte of a connection over TLS.
const tlsHandshake = 0x16

var prefaceMagic = [4]byte{'C', 'N', 'T', 'D'}

// The kinds of connections.
const (
	kindRaft   = 1 // between two replicas of one group
	kindCall   = 2 // from a node that calls another; the group is 0
	KindAppend = 3 // the appends of all groups from one node to another; the group is 0
)

// castagnoli is read only.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var errBadPreface = errors.New("not a preface of this version")

// preface is the decoded preface of a connection.
type preface struct {
	kind    uint8
	cluster [16]byte
	group   uint32
	to      uint64 // Addressee of the replica or node; 0 for any
	name    string // --cluster-name of the node; at most ClusterNameBytesMax, "" for none
}

// Addressee returns the field "to" of a preface for a Raft id or a node key; 0 for "".
func Addressee(name string) uint64 {
	if name == "" {
		return 0
	}
	sum := sha256.Sum256([]byte(name))
	return binary.BigEndian.Uint64(sum[:])
}

func appendPreface(dst []byte, p preface) []byte {
	start := len(dst)
	dst = append(dst, prefaceMagic[:]...)
	dst = append(dst, prefaceVersion, p.kind)
	dst = append(dst, p.cluster[:]...)
	dst = binary.BigEndian.AppendUint32(dst, p.group)
	dst = binary.BigEndian.AppendUint64(dst, p.to)
	dst = append(append(dst, byte(len(p.name))), p.name...)
	return binary.BigEndian.AppendUint32(dst, crc32.Checksum(dst[start:], castagnoli))
}

// prefaceLen returns the length of the preface that begins with b. b must have at least
// prefaceBytes bytes.
func prefaceLen(b []byte) (int, error) {
	switch {
	case b[0] == tlsHandshake:
		return 0, fmt.Errorf("%w: it speaks TLS, and this node was started without --cluster-tls-cert", errBadPreface)
	case [4]byte(b) != prefaceMagic:
		return 0, fmt.Errorf("%w: it begins with %q", errBadPreface, b[:4])
	case b[4] != prefaceVersion:
		return 0, fmt.Errorf("%w: version %d", errBadPreface, b[4])
	case b[prefaceHeadBytes-1] > ClusterNameBytesMax:
		return 0, fmt.Errorf("%w: a cluster name of %d bytes", errBadPreface, b[prefaceHeadBytes-1])
	}
	return prefaceBytes + int(b[prefaceHeadBytes-1]), nil
}

// parsePreface decodes exactly one preface.
func parsePreface(b []byte) (preface, error) {
	if len(b) < prefaceBytes {
		return preface{}, fmt.Errorf("%w: %d bytes", errBadPreface, len(b))
	}
	n, err := prefaceLen(b)
	if err != nil {
		return preface{}, err
	}
	if len(b) != n {
		return preface{}, fmt.Errorf("%w: %d bytes", errBadPreface, len(b))
	}
	end := n - crc32.Size
	if binary.BigEndian.Uint32(b[end:]) != crc32.Checksum(b[:end], castagnoli) {
		return preface{}, fmt.Errorf("%w: wrong checksum", errBadPreface)
	}
	return preface{
		kind: b[5], cluster: [16]byte(b[6:22]), group: binary.BigEndian.Uint32(b[22:]), to: binary.BigEndian.Uint64(b[26:]),
		name: string(b[prefaceHeadBytes:end]),
	}, nil
}
