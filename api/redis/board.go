package redis

import (
	"maps"
	"slices"

	"github.com/countd/countd/api/redis/resp"
	"github.com/countd/countd/auth"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/unread"
)

// boardCommands are the commands about notices and dots, which are shared by all users,
// and about users' positions in them.
func boardCommands() []spec {
	const group = "countd"
	return []spec{
		{"countd.notice.publish", -2, joins | writes, noKeys, auth.Write.On(shard.KeyspaceUnread), group, "publishes a notice in a channel, for all users", publish},
		{"countd.notice.retract", -3, joins | writes, noKeys, auth.Write.On(shard.KeyspaceUnread), group, "withdraws a notice", retract},
		{"countd.notice.get", -3, joins, noKeys, auth.Read.On(shard.KeyspaceUnread), group, "position of a user in a channel", notices},
		{"countd.notice.read", -3, joins | writes, noKeys, auth.Write.On(shard.KeyspaceUnread), group, "marks notices of a channel as read by a user", readNotices},
		{"countd.notice.list", 1, joins, noKeys, auth.Read.On(shard.KeyspaceUnread), group, "the channels", listChannels},
		{"countd.dot.fire", -2, joins | writes, noKeys, auth.Write.On(shard.KeyspaceUnread), group, "shows a dot to all users", fire},
		{"countd.dot.set", -4, joins | writes, noKeys, auth.Write.On(shard.KeyspaceUnread), group, "sets whether new users see a dot", setDot},
		{"countd.dot.get", 3, joins, noKeys, auth.Read.On(shard.KeyspaceUnread), group, "whether a user sees a dot", showDot},
		{"countd.dot.clear", -3, joins | writes, noKeys, auth.Write.On(shard.KeyspaceUnread), group, "hides a dot from a user", clearDot},
		{"countd.dot.list", 1, joins, noKeys, auth.Read.On(shard.KeyspaceUnread), group, "the dots", listDots},
	}
}

// nameOf parses the name of a channel or dot.
func nameOf(field string, text []byte) (string, error) {
	if !catalog.ValidName(text) {
		return "", fieldError(field, unread.NameRule)
	}
	return string(text), nil
}

// nameAndUser parses the first two arguments of most of these commands.
func nameAndUser(field string, args [][]byte) (name string, user uint64, err error) {
	if name, err = nameOf(field, args[1]); err == nil {
		user, err = userOf(args[2])
	}
	return name, user, err
}

func publish(c *conn, args [][]byte) { c.countUp(args, "channel", (*unread.Numbers).Publish) }
func fire(c *conn, args [][]byte)    { c.countUp(args, "dot", (*unread.Numbers).Fire) }

// countUp plans a write that adds a notice or fires a dot for all users. It replies with
// the resulting number.
func (c *conn) countUp(args [][]byte, field string, do func(*unread.Numbers, string, *shard.Write) (int64, error)) {
	b := c.batch
	name, err := nameOf(field, args[1])
	if err == nil {
		err = options(args, 2, b.keyOption(args))
	}
	if b.failed(err) {
		return
	}
	var n int64
	b.change(call{
		about: subject{name: name},
		write: func(w *shard.Write) (err error) {
			n, err = do(c.server.node().unread, name, w)
			return err
		},
		reply: func(dst []byte, _ bool) []byte { return resp.AppendInt(dst, n) },
	})
}

func retract(c *conn, args [][]byte) {
	b := c.batch
	name, err := nameOf("channel", args[1])
	seq := int64(0)
	if err == nil {
		seq, err = numberOf("seq", args[2])
	}
	if err == nil {
		err = options(args, 3, b.keyOption(args))
	}
	if b.failed(err) {
		return
	}
	b.change(call{
		about: subject{name: name},
		write: func(w *shard.Write) error { return c.server.node().unread.Retract(name, seq, w) },
		reply: func(dst []byte, _ bool) []byte { return resp.AppendInt(dst, seq) },
	})
}

func notices(c *conn, args [][]byte) {
	b := c.batch
	name, user, err := nameAndUser("channel", args)
	since := unread.Stand{Behind: noSeq}
	if err == nil {
		err = options(args, 3, numberOption("since", &since.Behind))
	}
	if b.failed(err) {
		return
	}
	since.Known = since.Behind != noSeq
	var n unread.Notices
	b.read(1, call{
		read: func(opt *shard.ReadOptions) (err error) {
			n, err = c.server.node().unread.Notices(name, user, since, opt)
			return err
		},
		reply: func(dst []byte, resp3 bool) []byte { return appendNotices(dst, n, resp3) },
	})
}

// noSeq marks the absence of a notice number.
const noSeq = -1

func readNotices(c *conn, args [][]byte) {
	b := c.batch
	name, user, err := nameAndUser("channel", args)
	upTo, since := int64(noSeq), int64(noSeq)
	if err == nil {
		err = options(args, 3, numberOption("upto", &upTo), numberOption("since", &since), b.keyOption(args))
	}
	if err == nil && upTo != noSeq && since != noSeq {
		err = fieldError("since", "a read goes up to a notice or begins behind one, not both")
	}
	if b.failed(err) {
		return
	}
	var n unread.Notices
	b.change(call{
		about: subject{true, user, name},
		write: func(w *shard.Write) (err error) {
			switch {
			case since != noSeq:
				n, err = c.server.node().unread.BeginNotices(name, user, since, w)
			case upTo != noSeq:
				n, err = c.server.node().unread.ReadNotices(name, user, &upTo, w)
			default:
				n, err = c.server.node().unread.ReadNotices(name, user, nil, w)
			}
			return err
		},
		reply: func(dst []byte, resp3 bool) []byte { return appendNotices(dst, n, resp3) },
	})
}

func appendNotices(dst []byte, n unread.Notices, resp3 bool) []byte {
	dst = resp.AppendMap(dst, 3, resp3)
	dst = resp.AppendInt(resp.AppendBulk(dst, "unread"), n.Unread)
	dst = resp.AppendBulk(dst, "last_read")
	if n.Seen {
		dst = resp.AppendInt(dst, n.LastRead)
	} else {
		dst = resp.AppendNull(dst, resp3)
	}
	return resp.AppendInt(resp.AppendBulk(dst, "latest"), n.Latest)
}

func setDot(c *conn, args [][]byte) {
	b := c.batch
	name, err := nameOf("dot", args[1])
	told, newUsers := false, false
	if err == nil {
		err = options(args, 2, b.keyOption(args), option{"newusers", func(values [][]byte) (int, error) {
			if len(values) == 0 || string(values[0]) != "0" && string(values[0]) != "1" {
				return 0, fieldError("newusers", "neither 0 nor 1")
			}
			told, newUsers = true, string(values[0]) == "1"
			return 1, nil
		}})
	}
	if err == nil && !told {
		err = fieldError("newusers", "missing")
	}
	if b.failed(err) {
		return
	}
	var fired int64
	b.change(call{
		about: subject{name: name},
		write: func(w *shard.Write) (err error) {
			fired, err = c.server.node().unread.SetDot(name, newUsers, w)
			return err
		},
		reply: func(dst []byte, _ bool) []byte { return resp.AppendInt(dst, fired) },
	})
}

func showDot(c *conn, args [][]byte) {
	b := c.batch
	name, user, err := nameAndUser("dot", args)
	if b.failed(err) {
		return
	}
	var shows bool
	b.read(1, call{
		read: func(opt *shard.ReadOptions) (err error) {
			shows, err = c.server.node().unread.Shows(name, user, opt)
			return err
		},
		reply: func(dst []byte, _ bool) []byte { return resp.AppendTruth(dst, shows) },
	})
}

func clearDot(c *conn, args [][]byte) {
	b := c.batch
	name, user, err := nameAndUser("dot", args)
	if err == nil {
		err = options(args, 3, b.keyOption(args))
	}
	if b.failed(err) {
		return
	}
	var shows bool
	b.change(call{
		about: subject{true, user, name},
		write: func(w *shard.Write) (err error) {
			shows, err = c.server.node().unread.ClearDot(name, user, w)
			return err
		},
		reply: func(dst []byte, _ bool) []byte { return resp.AppendTruth(dst, shows) },
	})
}

// readBoard plans a reply with everything that users share.
func (b *batch) readBoard(reply func(dst []byte, board *raftfsm.BoardView, resp3 bool) []byte) {
	var board *raftfsm.BoardView
	b.read(1, call{
		read: func(opt *shard.ReadOptions) (err error) {
			board, err = b.conn.server.node().unread.Board(opt)
			return err
		},
		reply: func(dst []byte, resp3 bool) []byte { return reply(dst, board, resp3) },
	})
}

func listChannels(c *conn, _ [][]byte) {
	c.batch.readBoard(func(dst []byte, board *raftfsm.BoardView, resp3 bool) []byte {
		dst = resp.AppendMap(dst, len(board.Channels), resp3)
		for _, name := range slices.Sorted(maps.Keys(board.Channels)) {
			channel := board.Channels[name]
			dst = resp.AppendMap(resp.AppendBulk(dst, name), 2, resp3)
			dst = resp.AppendInt(resp.AppendBulk(dst, "latest"), channel.Latest)
			dst = resp.AppendInt(resp.AppendBulk(dst, "retracted"), channel.Latest-channel.Unread(0))
		}
		return dst
	})
}

func listDots(c *conn, _ [][]byte) {
	c.batch.readBoard(func(dst []byte, board *raftfsm.BoardView, resp3 bool) []byte {
		dst = resp.AppendMap(dst, len(board.Dots), resp3)
		for _, name := range slices.Sorted(maps.Keys(board.Dots)) {
			dot := board.Dots[name]
			dst = resp.AppendMap(resp.AppendBulk(dst, name), 2, resp3)
			dst = resp.AppendInt(resp.AppendBulk(dst, "fired"), dot.Fired)
			dst = resp.AppendTruth(resp.AppendBulk(dst, "new_users"), dot.NewUsers)
		}
		return dst
	})
}
