package names

import (
	"hash/maphash"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// placesMax is the number of places for pairs by text, and by number. Full of UUIDs, they take some 30 MB.
	placesMax = 1 << 18
	// pairAgeMax bounds the time for which a node uses a pair without reading it again. So a text that
	// was erased is forgotten everywhere by then.
	pairAgeMax = time.Minute
)

// cache holds pairs of texts and numbers that were read lately. It is bounded: a pair has two places, by its hash, and
// replaces the one that was read earlier. Look-ups take no lock, and keep nothing of their arguments.
type cache struct {
	now   func() time.Time
	fills sync.Mutex // held by keep
	pairs atomic.Pointer[pairs]
}

// pairs has the pairs of all names keyspaces.
type pairs struct {
	seed             maphash.Seed
	byText, byNumber places
}

type places [placesMax]atomic.Pointer[pair]

// pair is a text and its number, of the names keyspace with the first group: a later keyspace of the same name has
// another one. It never changes.
type pair struct {
	text   string
	number uint64
	read   int64 // Unix time of the read, in seconds
	group  uint32
}

// at returns the two places of a hash.
func (p *places) at(hash uint64) (one, other *atomic.Pointer[pair]) {
	i := hash % placesMax &^ 1
	return &p[i], &p[i+1]
}

// find returns the pair of a key with this hash, or nil.
func (p *places) find(hash uint64, same func(of *pair) bool) *pair {
	one, other := p.at(hash)
	if of := one.Load(); of != nil && same(of) {
		return of
	}
	if of := other.Load(); of != nil && same(of) {
		return of
	}
	return nil
}

// put adds a pair, in place of an earlier one of the same key.
func (p *places) put(hash uint64, added *pair, same func(old *pair) bool) {
	one, other := p.at(hash)
	a, b := one.Load(), other.Load()
	switch {
	case a == nil || same(a):
		one.Store(added)
	case b == nil || same(b):
		other.Store(added)
	case a.read < b.read:
		one.Store(added)
	default:
		other.Store(added)
	}
}

// number returns the number of a text that was read since that time.
func (c *cache) number(group uint32, text []byte, since int64) (uint64, bool) {
	all := c.pairs.Load()
	if all == nil {
		return 0, false
	}
	p := all.byText.find(maphash.Bytes(all.seed, text), func(of *pair) bool { return of.text == string(text) && of.group == group })
	if p == nil || p.read < since {
		return 0, false
	}
	return p.number, true
}

func (c *cache) since() int64 { return c.now().Add(-pairAgeMax).Unix() }

// numbers sets numbers[i] to the number of texts[i]. It sets 0 for a text that is not in the cache, and returns the
// indexes of these texts.
func (c *cache) numbers(group uint32, texts []string, numbers []uint64) (unknown []int) {
	all, since := c.pairs.Load(), c.since()
	for i, text := range texts {
		numbers[i] = 0
		if p := all.ofText(group, text); p != nil && p.read >= since {
			numbers[i] = p.number
		} else {
			unknown = append(unknown, i)
		}
	}
	return unknown
}

// ofText returns the pair of a text, or nil.
func (p *pairs) ofText(group uint32, text string) *pair {
	if p == nil {
		return nil
	}
	return p.byText.find(maphash.String(p.seed, text), func(of *pair) bool { return of.text == text && of.group == group })
}

// ofNumber returns the pair of a number, or nil.
func (p *pairs) ofNumber(group uint32, number uint64) *pair {
	if p == nil {
		return nil
	}
	return p.byNumber.find(hashOf(group, number), func(of *pair) bool { return of.number == number && of.group == group })
}

// hashOf returns a hash that spreads neighbouring numbers.
func hashOf(group uint32, number uint64) uint64 {
	hi, lo := bits.Mul64(number^uint64(group)<<40, 0x9e3779b97f4a7c15)
	return hi ^ lo>>7
}

// texts sets texts[i] to the text of numbers[i]. It sets "" for a number that is not in the cache, and returns the
// indexes of these numbers.
func (c *cache) texts(group uint32, numbers []uint64, texts []string) (unknown []int) {
	all, since := c.pairs.Load(), c.since()
	for i, number := range numbers {
		texts[i] = ""
		p := all.ofNumber(group, number)
		if p != nil && p.read >= since {
			if of := all.ofText(group, p.text); of == nil || of.number == number { // else the text was erased and came back
				texts[i] = p.text
				continue
			}
		}
		unknown = append(unknown, i)
	}
	return unknown
}

// keep adds the pairs that were just read. It skips those without a text or number.
func (c *cache) keep(group uint32, texts []string, numbers []uint64) {
	read := c.now().Unix()
	c.fills.Lock()
	defer c.fills.Unlock()
	all := c.pairs.Load()
	if all == nil {
		all = &pairs{seed: maphash.MakeSeed()}
		c.pairs.Store(all)
	}
	for i, text := range texts {
		if text == "" || numbers[i] == 0 {
			continue
		}
		p := &pair{text: text, number: numbers[i], read: read, group: group}
		all.byText.put(maphash.String(all.seed, text), p, func(old *pair) bool { return old.text == text && old.group == group })
		all.byNumber.put(hashOf(group, p.number), p, func(old *pair) bool { return old.number == p.number && old.group == group })
	}
}

// forget removes all pairs.
func (c *cache) forget() {
	c.fills.Lock()
	defer c.fills.Unlock()
	c.pairs.Store(nil)
}
