package feed

import "github.com/countd/countd/raftfsm"

// A part that leaves the log replaces each stamp of a feed by stampMoved. stampMoved is below the
// index of every op in the log of the part. It is above 1, because a Since of 1 stands for the
// oldest read.
const stampMoved = 2

// Split implements raftfsm.Contents. A stamp is an index of the log, so the parts that leave the log do
// not keep the stamps. A proposer must not use a stamp that it learned before the split: it proposes 1 as
// Since, or reads the feed again.
func (f *contents) Split(s *raftfsm.Split, parts []raftfsm.Contents) error {
	view := f.bodies.Capture()
	defer view.Close()
	for view.More() {
		key, body, err := view.Next()
		if err != nil {
			return err
		}
		at := s.PartOf(key)
		part := parts[at].(*contents)
		var groups []byte
		part.was, part.wasStamp, part.wasGroups = part.was[:0], 0, nil
		part.now, part.nowStamp, groups = decodeBody(part.now[:0], body)
		part.nowGroups = decodeGroups(groups, part.now)
		if at > 0 && part.nowStamp > 0 {
			part.nowStamp = stampMoved
		}
		part.replace(key)
	}
	return nil
}
