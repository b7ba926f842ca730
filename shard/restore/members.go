package restore

import (
	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
)

// clearMembers removes the members of the shard.
func (r *restore) clearMembers() error {
	if r.cfg.Kind != codec.KindCounters {
		return nil
	}
	err := r.add(raftfsm.TableCounts, engine.Op{ID: r.route.LeastID(r.cfg.Shard), Kind: engine.OpClearMembers})
	if err != nil {
		return err
	}
	return r.flush()
}

// member adds a member of the snapshot to the next writes, with the time that it joined. The
// count is in the row.
func (r *restore) member(p members.Pair, at members.Stamp) error {
	var was, is members.State
	was.Add(p, at)
	column := p.Column
	if int(column) >= len(r.places) {
		return r.hasColumn(p.Row, int(column))
	}
	place := r.places[column]
	if p.Column = uint8(place); place != leftOut {
		is.Add(p, at)
	}
	r.changed.Digest += is.Digest - was.Digest
	if place == leftOut {
		return nil
	}
	id, err := r.idOf(p.Row)
	if err != nil {
		return err
	}
	return r.add(raftfsm.TableCounts, engine.Copy(id, p.Column, p.Member, uint64(at)))
}
