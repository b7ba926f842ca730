package dedup

import (
	"crypto/sha256"
	"encoding/binary"
)

// gonePerProducer bounds the producers of which only the highest number is
// remembered, as a multiple of Limits.ProducersMax.
const gonePerProducer = 8

// goneProducer is what stays of a producer that was forgotten. A number above
// high was never applied; of the others the group can no longer tell.
type goneProducer struct {
	hash uint64 // of its name
	high uint64
}

// goneProducers are the last ones that went. One that came back and went again
// is there twice: the later record counts.
type goneProducers struct {
	order fifo[goneProducer] // by when they went
	last  map[uint64]uint64  // by hash, the number of the later record
}

func newGoneProducers() goneProducers { return goneProducers{last: map[uint64]uint64{}} }

// high returns the highest number under a name that is there.
func (g *goneProducers) high(hash uint64) (high uint64, known bool) {
	n, known := g.last[hash]
	if !known {
		return 0, false
	}
	return g.order.at(n).high, true
}

// add remembers a producer. Two names of one hash share the higher number: it
// refuses some of the one, and takes none of the other twice.
func (g *goneProducers) add(p goneProducer) {
	if high, known := g.high(p.hash); known {
		p.high = max(p.high, high)
	}
	g.last[p.hash] = g.order.push(p)
}

// drop forgets the record that is there for longest.
func (g *goneProducers) drop() {
	n := g.order.first
	if hash := g.order.at(n).hash; g.last[hash] == n {
		delete(g.last, hash)
	}
	g.order.pop()
}

// producerHash is the beginning of SHA-256: equal on all replicas, for ever,
// and nobody meets another's by chance.
func producerHash(name string) uint64 {
	sum := sha256.Sum256([]byte(name))
	return binary.LittleEndian.Uint64(sum[:])
}
