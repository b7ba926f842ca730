package sources

import (
	"slices"
	"sync"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/source"
)

// counts counts the messages that this node has applied since it started. It outlives the readers,
// so a pause does not reset it. It has its own lock and never takes the lock of Sources, because
// consumers call counts while they hold their own lock.
type counts struct {
	partitions sync.Map // partitionKey → *source.Counts
}

type partitionKey struct {
	source    uint64 // number of the source
	partition uint32
}

// partition returns the Counts of a partition, which its readers increment.
func (c *counts) partition(number uint64, partition uint32) *source.Counts {
	loaded, _ := c.partitions.LoadOrStore(partitionKey{number, partition}, &source.Counts{})
	return loaded.(*source.Counts)
}

// keep drops the counts of sources that the argument all does not contain.
func (c *counts) keep(all []catalog.Source) {
	c.partitions.Range(func(p, _ any) bool {
		if !slices.ContainsFunc(all, func(src catalog.Source) bool { return src.Number == p.(partitionKey).source }) {
			c.partitions.Delete(p)
		}
		return true
	})
}

// load returns the number of messages that this node has applied, by source number and partition.
func (c *counts) load() map[uint64]map[uint32]uint64 {
	all := map[uint64]map[uint32]uint64{}
	c.partitions.Range(func(key, value any) bool {
		p := key.(partitionKey)
		if all[p.source] == nil {
			all[p.source] = map[uint32]uint64{}
		}
		all[p.source][p.partition], _ = value.(*source.Counts).Load()
		return true
	})
	return all
}
