package raftfsm

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"time"
)

// The bounds of what tells requests apart.
const (
	ProducerBytesMax = 64
	KeyBytesMax      = 128
)

// RequestID tells a request from all others of its keyspace, so that it is
// applied once. The zero RequestID is of a request that nothing is promised
// for.
type RequestID struct {
	kind     idKind
	producer []byte // 1…ProducerBytesMax bytes, the caller's
	seq      uint64
	key      [16]byte // SHA-256 of the key, cut
	body     [16]byte // SHA-256 of what was asked, cut
	born     int64    // when the key was made, Unix milliseconds; 0 if it does not say
}

type idKind uint8

const (
	byNothing idKind = iota
	byProducer
	byKey
)

// ByProducer names the request of number seq, from 1 on, of a stream. The name
// is not copied.
func ByProducer(name []byte, seq uint64) RequestID {
	return RequestID{kind: byProducer, producer: name, seq: seq}
}

// ByKey names a request by a key that the client chose. asked is what a repeat
// must ask for again: call and body.
func ByKey(key []byte, asked ...[]byte) RequestID {
	id := RequestID{kind: byKey, born: bornAt(key)}
	sum := sha256.Sum256(key)
	copy(id.key[:], sum[:])
	h := sha256.New()
	for _, part := range asked {
		var n [8]byte
		binary.LittleEndian.PutUint64(n[:], uint64(len(part)))
		h.Write(n[:])
		h.Write(part)
	}
	copy(id.body[:], h.Sum(sum[:0]))
	return id
}

// Exists reports whether the request has an identity.
func (id *RequestID) Exists() bool { return id.kind != byNothing }

// Keyed reports whether the identity is a key.
func (id *RequestID) Keyed() bool { return id.kind == byKey }

// Shard chooses one of a keyspace's shards by the key alone: the one that
// judges whether the key was used for another body.
func (id *RequestID) Shard(shards int) int {
	return int(binary.LittleEndian.Uint64(id.key[:]) % uint64(shards))
}

// bornAt returns the time inside a UUID of version 7 (RFC 9562, 5.7) in its
// text form, or 0 for any other key.
func bornAt(key []byte) int64 {
	if len(key) != 36 || key[8] != '-' || key[13] != '-' || key[18] != '-' || key[23] != '-' || key[14] != '7' {
		return 0
	}
	var ms int64
	for i, c := range key {
		var digit int64
		switch {
		case i == 8 || i == 13 || i == 18 || i == 23:
			continue
		case c >= '0' && c <= '9':
			digit = int64(c - '0')
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			digit = int64(c|0x20-'a') + 10
		default:
			return 0
		}
		if i < 13 {
			ms = ms<<4 | digit
		}
	}
	return ms
}

// Limits bound what a group remembers of requests. They stand in the log beside
// the leader's time, so that replicas forget the same things at the same index.
type Limits struct {
	// KeyHorizon is how long a key is sure to be remembered. A key that says
	// when it was made (UUIDv7) is refused from then on.
	KeyHorizon time.Duration
	// KeysMax bounds the keys. While it is reached, new ones are refused.
	KeysMax int
	// ProducerIdle is how long a producer is remembered after its last request.
	ProducerIdle time.Duration
	// ProducersMax bounds the producers. The one idle for longest goes first.
	ProducersMax int
}

// The bounds of Limits: a snapshot writes each list as one section.
const (
	KeysMaxMax      = 500_000
	ProducersMaxMax = 200_000
	HorizonMax      = 30 * 24 * time.Hour
)

// Check returns an error that names the limit that is out of its bounds.
func (l *Limits) Check() error {
	switch {
	case l.KeyHorizon < time.Millisecond || l.KeyHorizon > HorizonMax:
		return fmt.Errorf("key horizon %v is not in 1ms…%v", l.KeyHorizon, HorizonMax)
	case l.ProducerIdle < time.Millisecond || l.ProducerIdle > HorizonMax:
		return fmt.Errorf("producer idle time %v is not in 1ms…%v", l.ProducerIdle, HorizonMax)
	case l.KeysMax < 1 || l.KeysMax > KeysMaxMax:
		return fmt.Errorf("%d keys are not 1…%d", l.KeysMax, KeysMaxMax)
	case l.ProducersMax < 1 || l.ProducersMax > ProducersMaxMax:
		return fmt.Errorf("%d producers are not 1…%d", l.ProducersMax, ProducersMaxMax)
	}
	return nil
}
