package dedup

import (
	"crypto/sha256"
	"encoding/binary"
)

// forgottenPerProducer bounds the forgotten producers, as a multiple of
// Limits.ProducersMax.
const forgottenPerProducer = 8

// forgottenProducer is the record of a forgotten producer. The group has applied no number above
// high. It no longer knows which of the numbers up to high it has applied.
type forgottenProducer struct {
	hash uint64 // hash of the name
	high uint64
}

// forgottenProducers holds the most recently forgotten producers. A producer that
// returned and was forgotten again has two records; the later one counts.
type forgottenProducers struct {
	order fifo[forgottenProducer] // in the order in which they were forgotten
	last  index[uint64]           // by hash of the name
}

func newForgottenProducers() forgottenProducers { return forgottenProducers{last: newIndex[uint64]()} }

// high returns the highest number of a forgotten producer. hash is the hash of its name.
func (g *forgottenProducers) high(hash uint64) (high uint64, known bool) {
	n, known := g.last.find(hash, g.order.first)
	if !known {
		return 0, false
	}
	return g.order.at(n).high, true
}

// add adds a producer. If two names have the same hash, both get the higher number. Then the group
// may refuse requests of one of the two producers, but applies no request twice.
func (g *forgottenProducers) add(p forgottenProducer) {
	if high, known := g.high(p.hash); known {
		p.high = max(p.high, high)
	}
	g.last.own[p.hash] = g.order.push(p)
}

func (g *forgottenProducers) drop() {
	g.last.popped(g.order.at(g.order.first).hash, g.order.first)
	g.order.pop()
}

// split returns the forgotten producers for a part of the shard.
func (g *forgottenProducers) split() forgottenProducers {
	return forgottenProducers{order: g.order.split(), last: g.last.split(g.order.end)}
}

// producerHash returns the first 8 bytes of the SHA-256 of a name. It must never change, and must
// be the same on all replicas.
func producerHash(name string) uint64 {
	sum := sha256.Sum256([]byte(name))
	return binary.LittleEndian.Uint64(sum[:])
}
