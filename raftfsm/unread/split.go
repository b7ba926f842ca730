package unread

import "github.com/countd/countd/raftfsm"

// Split implements raftfsm.Contents. Each part continues the sweep at the key that the shard had
// reached. A step of a part reads only rows of the part, so the part reaches a key earlier than the
// undivided shard would.
func (u *contents) Split(s *raftfsm.Split, parts []raftfsm.Contents) error {
	tables, err := u.parting.Split(s, u.counts, u.cursors)
	if err != nil {
		return err
	}
	for i := range parts {
		part := parts[i].(*contents)
		part.counts, part.cursors = tables[0][i], tables[1][i]
		part.swept.Store(u.swept.Load())
	}
	return nil
}

// Part implements Machine.
func (u *Machine) Part(by raftfsm.Partition) (more bool, err error) {
	u.parting.Lock.Lock()
	defer u.parting.Lock.Unlock()
	now := u.current.Load()
	if u.closed || !u.Routed(by.From) { // checked after current was read, because Split replaces current after it has changed the route
		return false, raftfsm.ErrReplaced
	}
	return u.parting.Step(by, now.counts, now.cursors)
}

// Split implements raftfsm.Contents. It fails, because all users share the board.
func (b *boardContents) Split(*raftfsm.Split, []raftfsm.Contents) error { return raftfsm.ErrUndivided }
