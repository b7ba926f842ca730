package unread

import (
	"github.com/countd/countd/raftfsm/board"
	"github.com/countd/countd/raftfsm/unread"
	"github.com/countd/countd/shard"
)

// Notices is a user's position in a channel.
type Notices struct {
	Unread   int64
	Seen     bool  // whether the user has a cursor in the channel; if not, Unread is 0
	LastRead int64 // the notice up to which the user has read, if Seen
	Latest   int64 // the channel's last notice; 0 if none was ever published
}

// Stand is the last notice that a user without a cursor counts as having read. Only the calling
// service knows it.
type Stand struct {
	Behind int64
	Known  bool
}

// Publish adds a notice to a channel and returns its number.
func (n *Numbers) Publish(channel string, w *shard.Write) (seq int64, err error) {
	return n.writeBoard(w, &board.Op{Kind: board.Publish, Name: channel})
}

// Retract retracts a notice. It is no error to retract it again.
func (n *Numbers) Retract(channel string, seq int64, w *shard.Write) error {
	_, err := n.writeBoard(w, &board.Op{Kind: board.Retract, Name: channel, Seq: seq})
	return err
}

// Notices returns a user's position in a channel.
func (n *Numbers) Notices(channel string, user uint64, since Stand, opt *shard.ReadOptions) (Notices, error) {
	view, err := n.board(opt)
	if err != nil {
		return Notices{}, err
	}
	c, there := view.Channels[channel]
	if !there {
		return Notices{}, nil
	}
	row, err := n.cursors(user, int(c.Number)+1, opt)
	if err != nil {
		return Notices{}, err
	}
	return standing(&c, row, since), nil
}

// standing returns a user's position, computed from the row of the user's cursors.
func standing(c *board.Channel, row []int64, since Stand) Notices {
	s := Notices{Latest: c.Latest}
	switch s.LastRead, s.Seen = c.LastRead(row); {
	case s.Seen:
		s.Unread = c.Unread(s.LastRead)
	case since.Known:
		s.Unread = c.Unread(since.Behind)
	}
	return s
}

// ReadNotices moves a user's cursor in a channel up to notice upTo, or to the latest if upTo is
// nil. It never moves the cursor past the latest notice, or back. Like BeginNotices, it creates a
// missing channel, so that the user has a position before its first notice.
func (n *Numbers) ReadNotices(channel string, user uint64, upTo *int64, w *shard.Write) (Notices, error) {
	return n.moveNotices(channel, user, w, func(latest int64) (int64, bool) {
		if upTo == nil {
			return latest, true
		}
		return min(*upTo, latest), true
	})
}

// BeginNotices creates the cursor of a user in a channel at a notice, as if the user had read up to that
// notice. It does nothing if the user has a cursor in the channel.
func (n *Numbers) BeginNotices(channel string, user uint64, behind int64, w *shard.Write) (Notices, error) {
	return n.moveNotices(channel, user, w, func(latest int64) (int64, bool) { return min(behind, latest), false })
}

func (n *Numbers) moveNotices(channel string, user uint64, w *shard.Write, to func(latest int64) (seq int64, raise bool)) (Notices, error) {
	view, made, err := n.boardWith(board.MakeChannel, channel, w)
	if err != nil {
		return Notices{}, err
	}
	c, there := view.Channels[channel]
	if !there {
		return Notices{}, n.touch(w, user)
	}
	kind := unread.Raise
	seq, raise := to(c.Latest)
	if !raise {
		kind = unread.Begin
	}
	row, err := n.move(w, user, kind, c.Number, seq, made)
	if err != nil {
		return Notices{}, err
	}
	return standing(&c, row, Stand{}), nil
}
