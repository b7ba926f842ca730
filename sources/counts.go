package sources

import (
	"slices"
	"sync"

	"github.com/countd/countd/shard"
	"github.com/countd/countd/source"
)

// counts has the messages that this node has counted since it started, by source and
// partition. They outlive the readers, so that a pause does not set them to 0. It has a lock
// of its own, because consumers ask for counts while they hold theirs.
type counts struct {
	mu struct {
		sync.Mutex
		sources map[uint64]map[uint32]*source.Counts // by the source's number
	}
}

// counted is what a node has counted of a partition.
type counted struct {
	Applied  uint64 `json:"applied"`
	Rejected uint64 `json:"rejected"`
}

// partition returns what the readers of a partition count into.
func (c *counts) partition(number uint64, partition uint32) *source.Counts {
	c.mu.Lock()
	defer c.mu.Unlock()
	of := c.mu.sources[number]
	if of == nil {
		of = map[uint32]*source.Counts{}
		if c.mu.sources == nil {
			c.mu.sources = map[uint64]map[uint32]*source.Counts{}
		}
		c.mu.sources[number] = of
	}
	if of[partition] == nil {
		of[partition] = &source.Counts{}
	}
	return of[partition]
}

// keep forgets the sources that are gone.
func (c *counts) keep(all []shard.Source) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for number := range c.mu.sources {
		if !slices.ContainsFunc(all, func(of shard.Source) bool { return of.Number == number }) {
			delete(c.mu.sources, number)
		}
	}
}

// load returns what this node has counted, by number and partition.
func (c *counts) load() map[uint64]map[uint32]counted {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make(map[uint64]map[uint32]counted, len(c.mu.sources))
	for number, of := range c.mu.sources {
		all[number] = make(map[uint32]counted, len(of))
		for partition, counts := range of {
			applied, rejected := counts.Load()
			all[number][partition] = counted{applied, rejected}
		}
	}
	return all
}
