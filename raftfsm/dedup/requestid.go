package dedup

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"github.com/countd/countd/raftfsm/codec"
)

// These are the bounds of names of producers and of keys.
const (
	ProducerBytesMax = 64
	KeyBytesMax      = 128
)

// These are the sizes of encoded identities.
const (
	keyedSize   = 40
	judgedSize  = 36 + useSize
	namedSize   = judgedSize + 4*earlierMax
	useSize     = 16
	restoreSize = 8
)

// earlierMax is the number of earlier names of its judge that a part contains.
const earlierMax = 3

// RequestID identifies a request among all requests of its keyspace, so that each group applies it
// once. A request with the zero RequestID has no identity, and a repeat of it is applied again.
type RequestID struct {
	kind     idKind
	producer []byte // 1…ProducerBytesMax bytes, owned by the caller
	seq      uint64
	key      [16]byte           // SHA-256 of the key, truncated
	body     [16]byte           // SHA-256 of the call and its meaning, truncated
	born     int64              // the time in the key, in Unix milliseconds; 0 if it contains none
	use      Use                // the use of the key, if another shard judged it; zero in the part for the judge's own shard
	section  *SourceSection     // only for bySource
	restored *RestoredPositions // only for byRestorePositions
}

// Use identifies one use of a key that does not contain a time. The shard that judges the key, the
// judge, creates it. Both times are log times of the judge, in Unix milliseconds. DESIGN.md
// explains how other shards distinguish uses by these times.
type Use struct {
	Met   int64 // when the judge accepted the use
	Floor int64 // the judge has forgotten all uses with a lower Met
	// Names has the name that the judge had at Met, and then its names before that, the newest first.
	// In the answer of a judge that never split, all of them are 0: its name is the number of its
	// group.
	Names [1 + earlierMax]uint32
}

type idKind uint8

const (
	byNothing idKind = iota
	byProducer
	byKey
	byRestore // a request of the producer restoreProducer
	bySource  // this and the next: see positions.go
	byRestorePositions
)

// restoreProducer is the producer name of the writes that restore a shard. No client has such a
// name: neither an HTTP header nor a Redis session name contains a zero byte.
const restoreProducer = "\x00restore"

// ByProducer returns the id of the request with number seq of a producer. seq may be any number.
// The RequestID refers to name and does not copy it.
func ByProducer(name []byte, seq uint64) RequestID {
	return RequestID{kind: byProducer, producer: name, seq: seq}
}

// ByRestore returns the id of the write with number seq of a restore of a shard. Late copies, and
// late writes of an earlier restore, whose numbers are lower, change nothing. If first is set, the
// write is the first of its restore. Then it makes the shard forget all requests of clients,
// because the restored rows may lack the effects of these requests.
func ByRestore(seq uint64, first bool) RequestID {
	id := ByProducer([]byte(restoreProducer), seq)
	if first {
		id.kind = byRestore
	}
	return id
}

// ByKey returns the id of a request with a key that the client chose. meaning consists of the call
// and a normalised form of its body. A repeat must have the same meaning.
func ByKey(key []byte, meaning ...[]byte) RequestID {
	id := RequestID{kind: byKey, born: bornAt(key)}
	sum := sha256.Sum256(key)
	copy(id.key[:], sum[:])
	copy(id.body[:], hashMeaning(sum[:0], meaning))
	return id
}

// hashMeaning appends to dst the SHA-256 of all parts of meaning, each after its length.
func hashMeaning(dst []byte, meaning [][]byte) []byte {
	h := sha256.New()
	for _, part := range meaning {
		var n [8]byte
		binary.LittleEndian.PutUint64(n[:], uint64(len(part)))
		h.Write(n[:])
		h.Write(part)
	}
	return h.Sum(dst)
}

// Exists reports whether the request has an identity.
func (id *RequestID) Exists() bool { return id.kind != byNothing }

// Born returns the time that the key contains. It returns false if the key contains none.
func (id *RequestID) Born() (time.Time, bool) { return time.UnixMilli(id.born), id.born != 0 }

// JudgedBy returns the id of a part of a request whose key another shard, the judge, judges. group is
// the number of the judge's group, and use is its answer. If the judge has not judged the key yet, use
// is zero, and SetUse later writes the use into the section of the part.
func (id *RequestID) JudgedBy(group uint32, use Use) RequestID {
	part := *id
	part.use = use
	if use.Names[0] == 0 {
		part.use.Names[0] = group
	}
	return part
}

// judge returns the name of the judge of the use, or 0 in the part for the judge's own shard.
func (id *RequestID) judge() uint32 { return id.use.Names[0] }

// continues reports whether the judge of the use had the given name earlier.
func (id *RequestID) continues(judge uint32) bool {
	return judge != 0 && slices.Contains(id.use.Names[1:], judge)
}

// Keyed reports whether the identity is a key.
func (id *RequestID) Keyed() bool { return id.kind == byKey }

// IsJudged reports whether the identity is a key without a time. For such a key, the shard that
// judges it decides to which Use a request belongs.
func (id *RequestID) IsJudged() bool { return id.kind == byKey && id.born == 0 }

// Key returns the hash of the key. It is zero for a request without a key.
func (id *RequestID) Key() [16]byte { return id.key }

// Shard returns the number of the shard that judges the key. It depends only on the key and on
// shards, the number of shards.
func (id *RequestID) Shard(shards int) int { return int(shardOf(&id.key, uint64(shards))) }

func shardOf(key *[16]byte, shards uint64) uint64 { return binary.LittleEndian.Uint64(key[:]) % shards }

// Clients also use hashes of 32 hexadecimal digits as keys, which contain no time. One in 64 hashes
// looks like a UUID of version 7. So 32 digits without hyphens count as such a UUID only if its
// time is within these bounds, 2022 to 2039. One in 32,768 hashes looks like that.
const (
	bareBornMin = 0x0180_00000000 // Unix milliseconds, in the year when version 7 was proposed
	bareBornMax = 0x0200_00000000
)

// bornAt returns the time in a UUID of version 7 (RFC 9562, 5.7), with hyphens or as bare digits.
// The time is at least 1. For any other key, bornAt returns 0.
func bornAt(key []byte) int64 {
	var bare [32]byte
	hyphens := len(key) == 36 && key[8] == '-' && key[13] == '-' && key[18] == '-' && key[23] == '-'
	switch {
	case hyphens:
		n := 0
		for _, part := range [][]byte{key[:8], key[9:13], key[14:18], key[19:23], key[24:]} {
			n += copy(bare[n:], part)
		}
	case len(key) == len(bare):
		copy(bare[:], key)
	default:
		return 0
	}
	var raw [16]byte
	if _, err := hex.Decode(raw[:], bare[:]); err != nil || raw[6]>>4 != 7 || raw[8]>>6 != 0b10 {
		return 0
	}
	ms := int64(binary.BigEndian.Uint64(raw[:]) >> 16)
	if !hyphens && (ms < bareBornMin || ms >= bareBornMax) {
		return 0
	}
	return max(ms, 1) // 0 means that there is no time
}

// Hash returns the hash of the key, or of producer and number. For requests of other kinds it is
// zero.
func (id *RequestID) Hash() (sum [16]byte) {
	switch id.kind {
	case byKey:
		return id.key
	case byProducer:
		h := sha256.New()
		_, _ = h.Write(binary.LittleEndian.AppendUint64(nil, id.seq)) // never fails
		_, _ = h.Write(id.producer)
		copy(sum[:], h.Sum(nil))
	}
	return sum
}

// ForgetsClients reports whether the request makes the memory forget the requests of
// clients.
func (id *RequestID) ForgetsClients() bool { return id.kind == byRestore }

// SetUse writes a use into the head of a section, which is the part before the ops. The identity of
// the section must be a result of JudgedBy, and the use must have no names. The length of the
// head does not change.
func SetUse(head []byte, use Use) {
	at := head[len(head)-useSize:]
	binary.LittleEndian.PutUint64(at, uint64(use.Met))
	binary.LittleEndian.PutUint64(at[8:], uint64(use.Floor))
}

// Restores reports whether the request is a write of a restore.
func (id *RequestID) Restores() bool {
	return id.restored != nil || string(id.producer) == restoreProducer
}

// Section returns the kind of section for a request of this identity.
func (id *RequestID) Section() byte {
	switch {
	case id.use.Names[1] != 0:
		return codec.SectionNamed
	case id.judge() != 0:
		return codec.SectionJudged
	}
	return [...]byte{byNothing: codec.SectionRequest, byProducer: codec.SectionProducer, byKey: codec.SectionKeyed, byRestore: codec.SectionRestore,
		bySource: codec.SectionSource, byRestorePositions: codec.SectionPositions}[id.kind]
}

// AppendTo appends the encoding of the identity, which precedes the ops of a request. It panics if
// the name of the producer is too long or empty.
func (id *RequestID) AppendTo(dst []byte) []byte {
	switch id.kind {
	case byProducer:
		n := len(id.producer)
		if n < 1 || n > ProducerBytesMax {
			panic(fmt.Sprintf("a producer's name of %d bytes has no form in a log entry", n))
		}
		dst = append(append(dst, byte(n)), id.producer...)
		dst = binary.LittleEndian.AppendUint64(dst, id.seq)
	case byKey:
		dst = append(append(dst, id.key[:]...), id.body[:]...)
		if id.judge() == 0 {
			return binary.LittleEndian.AppendUint64(dst, uint64(id.born))
		}
		names := id.use.Names[:1]
		if id.use.Names[1] != 0 {
			names = id.use.Names[:]
		}
		for _, judge := range names {
			dst = binary.LittleEndian.AppendUint32(dst, judge)
		}
		dst = binary.LittleEndian.AppendUint64(dst, uint64(id.use.Met))
		dst = binary.LittleEndian.AppendUint64(dst, uint64(id.use.Floor))
	case byRestore:
		dst = binary.LittleEndian.AppendUint64(dst, id.seq)
	case bySource:
		dst = id.section.appendTo(dst)
	case byRestorePositions:
		dst = id.restored.appendTo(binary.LittleEndian.AppendUint64(dst, id.seq))
	}
	return dst
}

// AppendName appends a name that is the same for a request and its repeats: the kind and the key,
// or the producer and the number. A request with another body under the same key has the same name.
func (id *RequestID) AppendName(dst []byte) []byte {
	section := id.Section()
	if section == codec.SectionNamed {
		section = codec.SectionJudged // a use before the judge split has this form
	}
	if dst = append(dst, section); id.kind == byKey {
		return append(dst, id.key[:]...)
	}
	return id.AppendTo(dst)
}

// parseJudged parses the identity of a part whose key another shard judged. named means that the part
// contains earlier names of the judge.
func parseJudged(p []byte, named bool) (id RequestID, rest []byte, err error) {
	id = RequestID{kind: byKey, key: [16]byte(p), body: [16]byte(p[16:])}
	names := id.use.Names[:1]
	if named {
		names = id.use.Names[:]
	}
	p = p[32:]
	for i := range names {
		names[i], p = binary.LittleEndian.Uint32(p), p[4:]
	}
	id.use.Met, id.use.Floor = int64(binary.LittleEndian.Uint64(p)), int64(binary.LittleEndian.Uint64(p[8:]))
	if names[0] == 0 || named && names[1] == 0 || id.use.Met <= 0 || id.use.Floor > id.use.Met {
		return id, nil, fmt.Errorf("%w: a key judged by group %d at %d, from %d on", codec.ErrEntry, names[0], id.use.Met, id.use.Floor)
	}
	return id, p[useSize:], nil
}

// ParseIdentity parses the identity of a request. rest is what follows it in p. The name of the
// producer shares memory with p.
func ParseIdentity(kind byte, p []byte) (id RequestID, rest []byte, err error) {
	switch {
	case kind == codec.SectionRequest:
		return id, p, nil
	case kind == codec.SectionProducer && len(p) >= 1 && p[0] >= 1 && p[0] <= ProducerBytesMax && len(p) >= int(p[0])+9:
		n := 1 + int(p[0])
		id = ByProducer(p[1:n], binary.LittleEndian.Uint64(p[n:]))
		return id, p[n+8:], nil
	case kind == codec.SectionKeyed && len(p) >= keyedSize:
		id = RequestID{kind: byKey, key: [16]byte(p), body: [16]byte(p[16:]), born: int64(binary.LittleEndian.Uint64(p[32:]))}
		return id, p[keyedSize:], nil
	case kind == codec.SectionJudged && len(p) >= judgedSize:
		return parseJudged(p, false)
	case kind == codec.SectionNamed && len(p) >= namedSize:
		return parseJudged(p, true)
	case kind == codec.SectionRestore && len(p) >= restoreSize:
		return ByRestore(binary.LittleEndian.Uint64(p), true), p[restoreSize:], nil
	case kind == codec.SectionSource:
		return parseSource(p)
	case kind == codec.SectionPositions:
		return parseRestorePositions(p)
	}
	return id, nil, fmt.Errorf("%w: section kind %d of %d bytes", codec.ErrEntry, kind, len(p))
}
