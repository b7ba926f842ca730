package sources

import (
	"slices"
	"sync"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/source"
)

// counts holds the messages that this node has counted since it started. It outlives the readers,
// so a pause resets no count. It must not use the lock of Sources, because consumers ask for counts
// under their own lock.
type counts struct {
	partitions sync.Map // by partitionKey, a *source.Counts
}

type partitionKey struct {
	source    uint64 // number of the source
	partition uint32
}

// partition returns the counters of a partition that its readers increment.
func (c *counts) partition(number uint64, partition uint32) *source.Counts {
	of, _ := c.partitions.LoadOrStore(partitionKey{number, partition}, &source.Counts{})
	return of.(*source.Counts)
}

// keep drops the counts of deleted sources.
func (c *counts) keep(all []catalog.Source) {
	c.partitions.Range(func(p, _ any) bool {
		if !slices.ContainsFunc(all, func(of catalog.Source) bool { return of.Number == p.(partitionKey).source }) {
			c.partitions.Delete(p)
		}
		return true
	})
}

// load returns how many messages this node has counted, by number and partition.
func (c *counts) load() map[uint64]map[uint32]uint64 {
	all := map[uint64]map[uint32]uint64{}
	c.partitions.Range(func(key, of any) bool {
		p := key.(partitionKey)
		if all[p.source] == nil {
			all[p.source] = map[uint32]uint64{}
		}
		all[p.source][p.partition], _ = of.(*source.Counts).Load()
		return true
	})
	return all
}
