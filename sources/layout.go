package sources

import (
	"context"
	"errors"
	"time"

	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/shard/errs"
)

// layout has the shards to which ops of messages may belong, by the routes of one moment. Shards that grow change
// it: see shard/GROWTH.md, R15.
type layout struct {
	spaces []*shard.Keyspace // that ops of messages may change
	routes []raftfsm.Route   // of spaces
	shards []target          // all that have ids, in order
	index  [][]int           // by space and number of a shard: its index in shards
	slots  int               // number of shards, with those that have no ids yet
}

// target is a shard to which ops of messages may belong.
type target struct {
	keyspace *shard.Keyspace
	number   int
	group    uint32
	slot     int // index in shard.Write.Sections
}

// layoutOf returns the present layout of keyspaces.
func (s *Sink) layoutOf(keyspaces []*shard.Keyspace) *layout {
	l := &layout{}
	for _, k := range keyspaces {
		if !takesMessages(k) {
			continue
		}
		route, groups := s.world.Layout(k)
		index := make([]int, len(groups))
		for number, group := range groups {
			if index[number] = len(l.shards); route.Exists(number) {
				l.shards = append(l.shards, target{keyspace: k, number: number, group: group, slot: l.slots + number})
			}
		}
		l.spaces, l.routes, l.index = append(l.spaces, k), append(l.routes, route), append(l.index, index)
		l.slots += len(groups)
	}
	return l
}

// shardOf returns the index of an id's shard in shards.
func (l *layout) shardOf(space int, id uint64) int {
	number, _ := l.routes[space].KeyOf(id)
	return l.index[space][number]
}

// byFirst returns the routes by the first group of their keyspaces.
func (l *layout) byFirst() map[uint32]raftfsm.Route {
	routes := make(map[uint32]raftfsm.Route, len(l.spaces))
	for i, k := range l.spaces {
		routes[k.FirstGroup] = l.routes[i]
	}
	return routes
}

// layoutPause is the pause before a call is repeated because the layout has changed.
const layoutPause = 20 * time.Millisecond

// byOneLayout repeats a call until the layout does not change while it runs. It gives up when ctx ends, or after
// writeTimeout.
func byOneLayout(ctx context.Context, world World, call func() error) error {
	for until := time.Now().Add(writeTimeout); ; {
		err := call()
		if !errors.Is(err, errs.ErrOtherLayout) || time.Now().After(until) {
			return err
		}
		if err := world.CatchUp(ctx); err != nil { // this node's catalog may lack the parts of a shard
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(layoutPause):
		}
	}
}
