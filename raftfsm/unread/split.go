package unread

import (
	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/rows"
)

// Split implements raftfsm.Contents. Each part continues the sweep at the key that the shard had
// reached. A step of a part reads only rows of the part, so the part reaches a key earlier than the
// undivided shard would.
func (u *contents) Split(s *raftfsm.Split, parts []raftfsm.Contents) error {
	counts, cursors := make([]*engine.Table, len(parts)), make([]*engine.Table, len(parts))
	for i := range parts {
		part := parts[i].(*contents)
		counts[i], cursors[i] = part.counts, part.cursors
		part.swept.Store(u.swept.Load())
	}
	if err := rows.Split(u.counts, s.PartOf, counts); err != nil {
		return err
	}
	return rows.Split(u.cursors, s.PartOf, cursors)
}

// Split implements raftfsm.Contents. It fails, because all users share the board.
func (b *boardContents) Split(*raftfsm.Split, []raftfsm.Contents) error { return raftfsm.ErrUndivided }
