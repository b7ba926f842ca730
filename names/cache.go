package names

import (
	"sync"
	"time"
)

const (
	// pairsMax bounds the pairs of a generation. Two generations of UUIDs take some 25 MB.
	pairsMax = 1 << 16
	// pairAgeMax bounds the time for which a node uses a pair without reading it again. So a text that
	// was erased is forgotten everywhere by then.
	pairAgeMax = time.Minute
)

// cache holds pairs of texts and numbers. It is bounded: pairs that were just read go into the young
// generation. When that is full, it takes the place of the old one.
type cache struct {
	now func() time.Time

	mu struct {
		sync.RWMutex
		young, old generation
	}
}

// generation holds pairs of all names keyspaces, by the first group of the keyspace: a later keyspace
// of the same name has another one.
type generation struct {
	numbers map[uint32]map[string]pair
	texts   map[uint32]map[uint64]string
	size    int
}

type pair struct {
	number uint64
	read   int64 // Unix time of the read, in seconds
}

// number returns the number of a text that was read since that time.
func (c *cache) number(group uint32, text []byte, since int64) (uint64, bool) {
	c.mu.RLock()
	p, ok := c.mu.young.numbers[group][string(text)]
	if !ok {
		p, ok = c.mu.old.numbers[group][string(text)]
	}
	c.mu.RUnlock()
	return p.number, ok && p.read >= since
}

func (c *cache) since() int64 { return c.now().Add(-pairAgeMax).Unix() }

// numbers sets numbers[i] to the number of texts[i], or to 0, and returns the indexes of those that
// are not in the cache.
func (c *cache) numbers(group uint32, texts []string, numbers []uint64) (unknown []int) {
	since := c.since()
	c.mu.RLock()
	defer c.mu.RUnlock()
	young, old := c.mu.young.numbers[group], c.mu.old.numbers[group]
	for i, text := range texts {
		p, ok := young[text]
		if !ok {
			p, ok = old[text]
		}
		if numbers[i] = p.number; !ok || p.read < since {
			numbers[i], unknown = 0, append(unknown, i)
		}
	}
	return unknown
}

// texts sets texts[i] to the text of numbers[i], or to "", and returns the indexes of those that are
// not in the cache.
func (c *cache) texts(group uint32, numbers []uint64, texts []string) (unknown []int) {
	since := c.since()
	c.mu.RLock()
	defer c.mu.RUnlock()
	for i, number := range numbers {
		texts[i] = ""
		for _, g := range []*generation{&c.mu.young, &c.mu.old} {
			if text, ok := g.texts[group][number]; ok && g.has(group, text, number, since) {
				texts[i] = text
				break
			}
		}
		if texts[i] == "" {
			unknown = append(unknown, i)
		}
	}
	return unknown
}

// has reports whether the pair was read since that time.
func (g *generation) has(group uint32, text string, number uint64, since int64) bool {
	p := g.numbers[group][text]
	return p.number == number && p.read >= since
}

// keep adds the pairs that were just read. It skips those without a text or number.
func (c *cache) keep(group uint32, texts []string, numbers []uint64) {
	read := c.now().Unix()
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, text := range texts {
		if text == "" || numbers[i] == 0 {
			continue
		}
		if c.mu.young.size >= pairsMax {
			c.mu.old, c.mu.young = c.mu.young, generation{}
		}
		c.mu.young.put(group, text, pair{numbers[i], read})
	}
}

// forget removes all pairs.
func (c *cache) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.young, c.mu.old = generation{}, generation{}
}

func (g *generation) put(group uint32, text string, p pair) {
	if g.numbers == nil {
		g.numbers, g.texts = map[uint32]map[string]pair{}, map[uint32]map[uint64]string{}
	}
	if g.numbers[group] == nil {
		g.numbers[group], g.texts[group] = map[string]pair{}, map[uint64]string{}
	}
	if _, there := g.numbers[group][text]; !there {
		g.size++
	}
	g.numbers[group][text], g.texts[group][p.number] = p, text
}
