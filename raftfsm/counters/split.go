package counters

import (
	"fmt"

	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/rankings"
)

// Split implements raftfsm.Contents. It splits or adopts the sets last, because neither can be
// undone. A second call for the same Split leaves the sets unchanged.
func (c *contents) Split(s *raftfsm.Split, parts []raftfsm.Contents) error {
	tables, err := c.parting.Split(s, c.table)
	if err != nil {
		return err
	}
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
	s.Withdraw()
	states, err := c.sets.group.Split(c.sets.at, s.Index, len(s.Parts), s.PartOf)
	for i := range states {
		parts[i].(*contents).sets.at = states[i]
	}
	return err
}

// take replaces the sets by those of a parked part, which the group of the parent has staged on this node.
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

func (c *contents) splitOutboxes(s *raftfsm.Split, parts []raftfsm.Contents) error {
	view := c.out.bodies.Capture()
	defer view.Close()
	var box Outbox
	for view.More() {
		author, body, err := view.Next()
		if err != nil {
			return err
		}
		to := parts[s.PartOf(author)].(*contents).out
		box.IDs = box.IDs[:0]
		decodeOutboxBody(&box, body)
		to.sum += outboxDigest(author, &box)
		to.bodies.Set(author, body)
	}
	return nil
}
