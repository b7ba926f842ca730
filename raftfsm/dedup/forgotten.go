package dedup

import (
	"crypto/sha256"
	"encoding/binary"
)

// forgottenPerProducer bounds the forgotten producers, as a multiple of
// Limits.ProducersMax.
const forgottenPerProducer = 8

// forgottenProducer is the record of a forgotten producer. Numbers above high were never applied.
// The group no longer knows which of the numbers up to high were applied.
type forgottenProducer struct {
	hash uint64 // hash of its name
	high uint64
}

// forgottenProducers holds the most recently forgotten producers. A producer that
// returned and was forgotten again has two records; the later one counts.
type forgottenProducers struct {
	order fifo[forgottenProducer] // in the order in which they were forgotten
	last  map[uint64]uint64       // by hash, the number of the later record
}

func newForgottenProducers() forgottenProducers { return forgottenProducers{last: map[uint64]uint64{}} }

// high returns the highest number of a forgotten producer, by the hash of its name.
func (g *forgottenProducers) high(hash uint64) (high uint64, known bool) {
	n, known := g.last[hash]
	if !known {
		return 0, false
	}
	return g.order.at(n).high, true
}

// add remembers a producer. Two names with one hash share the higher number. Then the group may
// refuse requests of one producer, but applies no request twice.
func (g *forgottenProducers) add(p forgottenProducer) {
	if high, known := g.high(p.hash); known {
		p.high = max(p.high, high)
	}
	g.last[p.hash] = g.order.push(p)
}

func (g *forgottenProducers) drop() {
	n := g.order.first
	if hash := g.order.at(n).hash; g.last[hash] == n {
		delete(g.last, hash)
	}
	g.order.pop()
}

// producerHash returns the first 8 bytes of the SHA-256 of a name. All replicas compute the same
// hash for ever, and two names hardly ever share one.
func producerHash(name string) uint64 {
	sum := sha256.Sum256([]byte(name))
	return binary.LittleEndian.Uint64(sum[:])
}
