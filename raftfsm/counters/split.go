package counters

import (
	"fmt"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/rankings"
	"github.com/countd/countd/raftfsm/spill"
)

// Split implements raftfsm.Contents. It splits or adopts the sets last, because neither can be
// undone. A second call for the same Split leaves the sets unchanged. After an error the parts have no tables, so
// that a parked part, which another try may adopt, keeps its rows on disk.
func (c *contents) Split(s *raftfsm.Split, parts []raftfsm.Contents) (err error) {
	tables, err := c.parting.Split(s, c.table)
	if err != nil {
		return err
	}
	defer func() {
		if err == nil {
			return
		}
		for i := range parts {
			if parts[i].(*contents).table = engine.New(); s.Adopts == nil {
				tables[0][i].Close()
			}
		}
	}()
	hot, largest := make([]*rankings.HotLists, len(parts)), make([]*rankings.LargestLists, len(parts))
	for i := range parts {
		part := parts[i].(*contents)
		part.table, part.largest = tables[0][i], rankings.NewLargestLists(tables[0][i])
		hot[i], largest[i] = part.hot, part.largest
	}
	if err := c.splitOutboxes(s, parts); err != nil {
		return err
	}
	c.hot.Split(s.PartOf, hot)
	c.largest.Split(s.PartOf, largest)
	if c.sets.at == (members.State{}) {
		return nil
	}
	if s.Adopts != nil {
		return parts[0].(*contents).sets.take(&c.sets, s)
	}
	states, err := c.sets.group.Split(c.sets.at, s.Index, len(s.Parts), setsPartition(s), s.Withdraw)
	for i := range states {
		parts[i].(*contents).sets.at = states[i]
	}
	return err
}

// setsPartition returns the Partition by which the sets may be parted already. Without one, no parting fits.
func setsPartition(s *raftfsm.Split) members.Partition {
	if s.By.Parts > 0 {
		return s.By
	}
	return &partOf{s.PartOf}
}

type partOf struct{ part func(key uint64) int }

// Of implements members.Partition.
func (p *partOf) Of(row uint64) int { return p.part(row) }

// take replaces the sets by those of a parked part, which the group of the parent has split off on this node.
func (s *sets) take(part *sets, of *raftfsm.Split) (err error) {
	if s.group == nil {
		return errNoSets
	}
	staged := part.at
	staged.Index = of.Index
	s.at, err = s.group.AdoptPart(of.Adopts.Parent, of.Adopts.Split, of.Adopts.Part, of.Index)
	if err == nil && s.at != staged {
		err = fmt.Errorf("%w: the staged part has %+v, the parked one %+v", members.ErrDamaged, s.at, staged)
	}
	return err
}

// splitOutboxes hands the outboxes over. It copies them if s has no Partition or names copies.
func (c *contents) splitOutboxes(s *raftfsm.Split, parts []raftfsm.Contents) error {
	to := make([]*spill.Bodies, len(parts))
	for i := range parts {
		to[i] = parts[i].(*contents).out.bodies
	}
	now, err := raftfsm.SplitBodies(s, c.out.bodies, to, func(part *spill.Bodies, author uint64, body []byte) {
		part.Set(author, body, outboxBodyDigest(author, body))
	})
	for i := range now {
		parts[i].(*contents).out.bodies = now[i]
	}
	return err
}
