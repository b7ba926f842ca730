package load

import (
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"sync/atomic"
)

// Dist is the distribution by which ids are chosen.
type Dist string

// The distributions of ids.
const (
	Zipf    Dist = "zipf"    // few ids get most of the load
	Uniform Dist = "uniform" // all ids have the same probability
	Hot     Dist = "hot"     // one id gets all the load
	Each    Dist = "each"    // all ids in order, then again from the first
)

// zipfSMax bounds the exponent of Zipf. With a larger exponent, one id would get all the load, as
// with Hot.
const zipfSMax = 10

// IDs is the set of ids of a load and their distribution. It must not change during a run.
type IDs struct {
	Dist  Dist
	N     uint64   // ids 1 … N, if List is empty
	List  []uint64 // ids to use in place of 1 … N
	ZipfS float64  // exponent of Zipf, above 1; with a larger one, fewer ids get most of the load
}

func (s *IDs) validate() error {
	switch {
	case s.Dist != Zipf && s.Dist != Uniform && s.Dist != Hot && s.Dist != Each:
		return fmt.Errorf("the distribution is one of zipf, uniform, hot and each, not %q", s.Dist)
	case s.size() == 0:
		return errors.New("a load needs at least one id")
	case s.Dist == Zipf && !(s.ZipfS > 1 && s.ZipfS <= zipfSMax):
		return fmt.Errorf("the exponent of zipf lies above 1 and at most at %d, not at %v", zipfSMax, s.ZipfS)
	}
	return nil
}

func (s *IDs) size() uint64 {
	if len(s.List) > 0 {
		return uint64(len(s.List))
	}
	return s.N
}

type picker struct {
	set  *IDs
	each *atomic.Uint64 // for Each: number of ids that all workers together have used
	rand *rand.Rand
	zipf *rand.Zipf // nil unless the distribution is Zipf
	step uint64     // coprime to the size of the set
}

// newPicker returns a picker. The seed determines its sequence of random ids.
func newPicker(set *IDs, each *atomic.Uint64, seed uint64) *picker {
	const stream = 0x636f756e7464 // second half of the seed of the generator; an arbitrary constant
	p := &picker{set: set, each: each, rand: rand.New(rand.NewPCG(seed, stream)), step: coprimeStep(set.size())}
	if set.Dist == Zipf {
		p.zipf = rand.NewZipf(p.rand, set.ZipfS, 1, set.size()-1)
	}
	return p
}

func (p *picker) next() uint64 {
	n := p.set.size()
	var rank uint64
	switch p.set.Dist {
	case Zipf:
		rank = p.zipf.Uint64()
	case Uniform:
		rank = p.rand.Uint64N(n)
	case Each:
		return p.set.idAt((p.each.Add(1) - 1) % n)
	}
	// Spread the ranks over the set, so that the most popular ids are not adjacent.
	return p.set.idAt(mulMod(rank, p.step, n))
}

// idAt returns the id at an index of the set. The first index is 0.
func (s *IDs) idAt(index uint64) uint64 {
	if len(s.List) > 0 {
		return s.List[index]
	}
	return index + 1
}

// coprimeStep returns a step near 0.618 n that is coprime to n. So its multiples mod n visit all of
// 0 … n-1.
func coprimeStep(n uint64) uint64 {
	const golden = 0x9e3779b97f4a7c15 // 0.618 × 2^64
	step, _ := bits.Mul64(n, golden)
	for step = max(step, 1); gcd(step, n) != 1; step++ {
	}
	return step
}

func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

func mulMod(a, b, n uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return bits.Rem64(hi, lo, n)
}
