package shard

import (
	"fmt"
	"sync"
	"time"

	"github.com/countd/countd/raftfsm"
)

// page is the scratch memory of a read: what each shard is asked for.
type page struct {
	byShard []pagePart
}

type pagePart struct {
	keys []uint64
	at   []int // position of each key in the request
	rows []int64
}

var pagePool = sync.Pool{New: func() any { return &page{} }}

// Get fills rows, width counts an id, with the rows of ids in their order. Rows
// of one shard that are asked for together are each whole; rows of different
// ids may be of different moments.
func (n *Node) Get(ks *Keyspace, ids []uint64, width int, opt *ReadOptions, rows []int64) error {
	groups, err := n.groupsOf(ks)
	if err != nil {
		return err
	}
	if len(ids) == 1 {
		s, key := keyOf(ids[0], len(groups))
		if err := groups[s].admit(opt); err != nil {
			return err
		}
		groups[s].fsm.Table().Get(key, rows[:width])
		return nil
	}
	pg := pagePool.Get().(*page)
	defer pagePool.Put(pg)
	pg.split(ids, len(groups))
	for s := range pg.byShard {
		p := &pg.byShard[s]
		if len(p.keys) == 0 {
			continue
		}
		if err := groups[s].admit(opt); err != nil {
			return err
		}
		if need := len(p.keys) * width; cap(p.rows) < need {
			p.rows = make([]int64, need)
		}
		p.rows = p.rows[:len(p.keys)*width]
		groups[s].fsm.Table().GetMany(p.keys, width, p.rows)
		for i, at := range p.at {
			copy(rows[at*width:(at+1)*width], p.rows[i*width:(i+1)*width])
		}
	}
	return nil
}

func (pg *page) split(ids []uint64, shards int) {
	if cap(pg.byShard) < shards {
		pg.byShard = make([]pagePart, shards)
	}
	pg.byShard = pg.byShard[:shards]
	for s := range pg.byShard {
		p := &pg.byShard[s]
		p.keys, p.at = p.keys[:0], p.at[:0]
	}
	for i, id := range ids {
		s, key := keyOf(id, shards)
		p := &pg.byShard[s]
		p.keys = append(p.keys, key)
		p.at = append(p.at, i)
	}
}

// admit returns nil once this replica may answer a read.
func (g *counterGroup) admit(opt *ReadOptions) error {
	if index := opt.Token.Index(g.number); index > 0 && !g.fsm.WaitApplied(index, opt.Deadline) {
		return fmt.Errorf("%w: log index %d of group %d is not applied here", ErrNoQuorum, index, g.number)
	}
	switch opt.Consistency {
	case Stale:
		return nil
	case Linearizable:
		return g.confirm(opt.Deadline)
	default:
		// A leader that has applied its term's barrier has every write that
		// was acknowledged before it. Cut off from the other voters, it goes
		// on leading for its lease.
		if opt.MaxStaleness > 0 && opt.MaxStaleness < g.group.cfg.Timing.Lease {
			return g.confirm(opt.Deadline)
		}
		return g.group.ready()
	}
}

// confirm returns nil once every write that was acknowledged before the call is
// applied here. A write is acknowledged after it is applied at its leader, so
// the sole voter of a group has them all; otherwise the read goes through the
// log as a request without ops, behind all of them.
func (g *counterGroup) confirm(deadline time.Time) error {
	if err := g.group.ready(); err != nil || g.group.soleVoter() {
		return err
	}
	var w raftfsm.RequestWriter
	w.Reset(nil, &RequestID{})
	q, err := g.proposer.submit(&w, false, 0)
	if err != nil {
		return err
	}
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	if err := g.proposer.wait(q, timer); err != nil {
		// Not wrapped: nothing was written, so no outcome is unknown and
		// nothing is left to withdraw.
		return fmt.Errorf("%w: %s", ErrNoQuorum, err.Error())
	}
	return nil
}
