package counters

import (
	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/rows"
)

// Split implements raftfsm.Contents. It splits the sets last, because a split of sets cannot be
// undone. The hot lists of all parts begin empty.
func (c *contents) Split(s *raftfsm.Split, parts []raftfsm.Contents) error {
	tables := make([]*engine.Table, len(parts))
	for i := range parts {
		tables[i] = parts[i].(*contents).table
	}
	if err := rows.Split(c.table, s.PartOf, tables); err != nil {
		return err
	}
	if err := c.splitOutboxes(s, parts); err != nil {
		return err
	}
	if c.sets.at == (members.State{}) {
		return nil
	}
	s.Withdraw()
	states, err := c.sets.group.Split(c.sets.at, s.Index, len(s.Parts), s.PartOf)
	for i := range states {
		parts[i].(*contents).sets.at = states[i]
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
