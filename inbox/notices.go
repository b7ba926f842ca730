package inbox

import (
	"maps"
	"slices"

	"github.com/countd/countd/raftfsm/unread"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/shard/errs"
)

// Channel is the state of a channel that all users share.
type Channel struct {
	Name      string
	Latest    int64 // number of the last notice; 0 if none was ever published
	Retracted int64
}

// Channels returns all channels, sorted by name.
func (n *Numbers) Channels(opt *shard.ReadOptions) ([]Channel, error) {
	view, err := n.board(opt)
	if err != nil {
		return nil, err
	}
	channels := make([]Channel, 0, len(view.Channels))
	for _, name := range slices.Sorted(maps.Keys(view.Channels)) {
		c := view.Channels[name]
		channels = append(channels, Channel{name, c.Latest, c.Latest - c.Unread(0)})
	}
	return channels, nil
}

// Notices is a user's position in a channel.
type Notices struct {
	Unread   int64
	Seen     bool  // the user has a cursor in the channel; if false, Unread is 0
	LastRead int64 // last notice that the user has read; valid only if Seen
	Latest   int64 // last notice of the channel; 0 if none was ever published
}

// Stand is the number of the last notice that counts as read for a user without a cursor. The
// client of the API sends it.
type Stand struct {
	Behind int64
	Known  bool
}

// Publish adds a notice to a channel and returns its number.
func (n *Numbers) Publish(channel string, w *shard.Write) (seq int64, err error) {
	return n.writeBoard(w, &unread.BoardOp{Kind: unread.Publish, Name: channel})
}

// Retract retracts a notice. Retracting it again has no effect.
func (n *Numbers) Retract(channel string, seq int64, w *shard.Write) error {
	_, err := n.writeBoard(w, &unread.BoardOp{Kind: unread.Retract, Name: channel, Seq: seq})
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

// standing computes a user's position in a channel from the row of the user's cursors.
func standing(c *unread.Channel, row []int64, since Stand) Notices {
	s := Notices{Latest: c.Latest}
	switch s.LastRead, s.Seen = c.LastRead(row); {
	case s.Seen:
		s.Unread = c.Unread(s.LastRead)
	case since.Known:
		s.Unread = c.Unread(since.Behind)
	}
	return s
}

// ReadNotices moves a user's cursor in a channel up to notice *upTo, or to the latest notice if
// upTo and since are nil. It never moves the cursor past the latest notice, or back. If since is
// not nil, upTo must be nil. ReadNotices then only creates a cursor for a user who has none, as if
// the user had read up to notice *since. If the channel is missing, it creates the channel, so that
// the user has a position before the channel's first notice.
func (n *Numbers) ReadNotices(channel string, user uint64, upTo, since *int64, w *shard.Write) (Notices, error) {
	if upTo != nil && since != nil {
		return Notices{}, &errs.ArgumentError{Field: "since", Problem: "a read goes up to a notice or begins behind one, not both"}
	}
	return n.moveNotices(channel, user, w, func(latest int64) (int64, bool) {
		switch {
		case since != nil:
			return min(*since, latest), false
		case upTo != nil:
			return min(*upTo, latest), true
		}
		return latest, true
	})
}

func (n *Numbers) moveNotices(channel string, user uint64, w *shard.Write, to func(latest int64) (seq int64, raise bool)) (Notices, error) {
	view, made, err := n.boardWith(unread.MakeChannel, channel, w)
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
