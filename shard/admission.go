package shard

import (
	"fmt"

	"github.com/countd/countd/shard/tiering"
)

// admit checks the parts of a write for present shards that this node leads, and reads what they need from
// disk. If the read fails, admit returns its error, because this node could not apply the part
// either. The leaders of the other shards check the other parts.
func (wr *writer) admit(ps *parts, w *Write) error {
	var full *NewRowError
	for s := ps.base; s < len(ps.byShard); s++ {
		p := &ps.byShard[s]
		if len(p.ops) == 0 || p.settled {
			continue
		}
		r, err := p.group.led()
		if err != nil {
			continue
		}
		c := &ps.check
		if err := c.Begin(&r.fsm, wr.headroom, w.Deadline); err != nil {
			return err
		}
		for _, i := range p.ops {
			if w.Ops.See(c, ps.key(p, w.Ops.ID(i)), i) == nil {
				continue
			}
			if full == nil || i < full.Op {
				full = &NewRowError{Op: i, Wider: c.Wider, Limit: c.Limit}
			}
			break
		}
		if full != nil {
			continue
		}
		if err := c.Read(); err != nil {
			if wr.alone() && tiering.IsDamage(err) {
				return p.group.failedAlone(err)
			}
			return err
		}
	}
	if full != nil {
		return full
	}
	return nil
}

// failedAlone wraps the error for damaged rows that no other node has.
func (g *shardReplica) failedAlone(err error) error {
	if tiering.IsDamage(err) {
		return &UnreadableError{Keyspace: g.keyspace, Shard: g.shard, Err: err}
	}
	return fmt.Errorf("shard %d of keyspace %s: %w", g.shard, g.keyspace, err)
}
