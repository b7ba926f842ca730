package feed

import (
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/spill"
)

// stampMoved is the stamp of each feed of a part that leaves the log, if the feed had a stamp. It is below the
// index of every op in the log of the part. It is above 1, because a Since of 1 stands for the
// oldest read.
const stampMoved = 2

// stampOf returns the stamp of a feed, or 0, from the stamp in its body. In memory, a stamp is an index of the shard's
// log plus Origin. So Split changes no body: the Origin of a part that leaves the log is the highest stamp that the
// bodies may have then.
func stampOf(bodies *spill.Bodies, stamp uint64) uint64 {
	switch {
	case stamp > bodies.Origin:
		return stamp - bodies.Origin
	case stamp > 0:
		return stampMoved
	}
	return 0
}

// Part implements Machine.
func (f *Machine) Part(by raftfsm.Partition) (more bool, err error) {
	bodies := f.bodies.Current()
	if !f.Routed(by.From) { // checked after Current, because Split shows other bodies after it has changed the route
		return false, raftfsm.ErrReplaced
	}
	return raftfsm.PartBodies(bodies, by)
}

// Split implements raftfsm.Contents. A stamp is an index of the log, so the parts that leave the log do
// not keep the stamps. A proposer must not use a stamp that it learned before the split: it proposes 1 as
// Since, or reads the feed again.
func (f *contents) Split(s *raftfsm.Split, parts []raftfsm.Contents) error {
	to := make([]*spill.Bodies, len(parts))
	for i := range parts {
		to[i] = parts[i].(*contents).bodies
	}
	now, err := raftfsm.SplitBodies(s, f.bodies, to, func(part *spill.Bodies, user uint64, body []byte) {
		part.Set(user, body, bodyDigest(user, body))
	})
	for i := range now {
		parts[i].(*contents).bodies = now[i]
		if now[i].Origin = f.bodies.Origin; i > 0 {
			now[i].Origin += s.Index
		}
	}
	return err
}
