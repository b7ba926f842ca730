package sources

import (
	"maps"
	"slices"
	"sync"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/source"
)

// counts holds the messages that this node has counted since it started, by source and partition. It outlives
// the readers, so that a pause does not reset the counts. It has its own lock, because consumers ask for
// counts while they hold theirs.
type counts struct {
	mu struct {
		sync.Mutex
		partitions map[partitionKey]*source.Counts
	}
}

type partitionKey struct {
	source    uint64 // its number
	partition uint32
}

// partition returns the counters of a partition that its readers increment.
func (c *counts) partition(number uint64, partition uint32) *source.Counts {
	p := partitionKey{number, partition}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.partitions == nil {
		c.mu.partitions = map[partitionKey]*source.Counts{}
	}
	if c.mu.partitions[p] == nil {
		c.mu.partitions[p] = &source.Counts{}
	}
	return c.mu.partitions[p]
}

// keep forgets deleted sources.
func (c *counts) keep(all []catalog.Source) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.mu.partitions, func(p partitionKey, _ *source.Counts) bool {
		return !slices.ContainsFunc(all, func(of catalog.Source) bool { return of.Number == p.source })
	})
}

// load returns how many messages this node has counted, by number and partition.
func (c *counts) load() map[uint64]map[uint32]uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := map[uint64]map[uint32]uint64{}
	for p, counts := range c.mu.partitions {
		if all[p.source] == nil {
			all[p.source] = map[uint32]uint64{}
		}
		all[p.source][p.partition], _ = counts.Load()
	}
	return all
}
