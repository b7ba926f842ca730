package redis

import (
	"maps"
	"slices"

	"github.com/countd/countd/api/redis/resp"
	"github.com/countd/countd/auth"
	"github.com/countd/countd/raftfsm/board"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/unread"
)

// boardCommands returns the commands about notices and dots, which all users share, and about the
// users' positions in them.
func boardCommands() []spec {
	const group = "countd"
	read, write := auth.Read.On(shard.KeyspaceUnread), auth.Write.On(shard.KeyspaceUnread)
	return []spec{
		{"countd.notice.publish", -2, joins | writes, noKeys, write, group, "publishes a notice in a channel, for all users", countUp("channel", (*unread.Numbers).Publish)},
		{"countd.notice.retract", -3, joins | writes, noKeys, write, group, "withdraws a notice", retract},
		{"countd.notice.get", -3, joins, noKeys, read, group, "position of a user in a channel", notices},
		{"countd.notice.read", -3, joins | writes, noKeys, write, group, "marks notices of a channel as read by a user", readNotices},
		{"countd.notice.list", 1, joins, noKeys, read, group, "the channels", readBoard(appendChannels)},
		{"countd.dot.fire", -2, joins | writes, noKeys, write, group, "shows a dot to all users", countUp("dot", (*unread.Numbers).Fire)},
		{"countd.dot.set", -4, joins | writes, noKeys, write, group, "sets whether new users see a dot", setDot},
		{"countd.dot.get", 3, joins, noKeys, read, group, "whether a user sees a dot", showDot},
		{"countd.dot.clear", -3, joins | writes, noKeys, write, group, "hides a dot from a user", clearDot},
		{"countd.dot.list", 1, joins, noKeys, read, group, "the dots", readBoard(appendDots)},
	}
}

// countUp plans a write that adds a notice or fires a dot for all users. It replies with
// the resulting number.
func countUp(field string, do func(*unread.Numbers, string, *shard.Write) (int64, error)) func(*conn, [][]byte) {
	return func(c *conn, args [][]byte) {
		a := c.arguments(args)
		name := a.name(field)
		a.options(a.keyOption())
		planWrite(a, subject{name: name}, 1, func(w *shard.Write) (int64, error) { return do(c.server.node().unread, name, w) }, appendInt)
	}
}

func retract(c *conn, args [][]byte) {
	a := c.arguments(args)
	name, seq := a.name("channel"), a.number("seq")
	a.options(a.keyOption())
	planWrite(a, subject{name: name}, 1, func(w *shard.Write) (int64, error) { return seq, c.server.node().unread.Retract(name, seq, w) }, appendInt)
}

// noSeq marks the absence of a notice number.
const noSeq = -1

func notices(c *conn, args [][]byte) {
	a := c.arguments(args)
	name, user, since := a.name("channel"), a.user(), unread.Stand{Behind: noSeq}
	a.options(numberOption("since", &since.Behind))
	since.Known = since.Behind != noSeq
	planRead(a, nil, 1, func(opt *shard.ReadOptions) (unread.Notices, error) {
		return c.server.node().unread.Notices(name, user, since, opt)
	}, appendNotices)
}

func readNotices(c *conn, args [][]byte) {
	a := c.arguments(args)
	name, user, upTo, since := a.name("channel"), a.user(), int64(noSeq), int64(noSeq)
	a.options(numberOption("upto", &upTo), numberOption("since", &since), a.keyOption())
	if upTo != noSeq && since != noSeq {
		a.fail(fieldError("since", "a read goes up to a notice or begins behind one, not both"))
	}
	planWrite(a, subject{ofUser, user, name}, 1, func(w *shard.Write) (unread.Notices, error) {
		switch {
		case since != noSeq:
			return c.server.node().unread.BeginNotices(name, user, since, w)
		case upTo != noSeq:
			return c.server.node().unread.ReadNotices(name, user, &upTo, w)
		}
		return c.server.node().unread.ReadNotices(name, user, nil, w)
	}, appendNotices)
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
	a := c.arguments(args)
	name, newUsers := a.name("dot"), ""
	a.options(a.keyOption(), textOption("newusers", func(text []byte) error {
		if newUsers = string(text); newUsers != "0" && newUsers != "1" {
			return fieldError("newusers", "neither 0 nor 1")
		}
		return nil
	}))
	if newUsers == "" {
		a.fail(fieldError("newusers", "missing"))
	}
	planWrite(a, subject{name: name}, 1, func(w *shard.Write) (int64, error) { return c.server.node().unread.SetDot(name, newUsers == "1", w) }, appendInt)
}

func showDot(c *conn, args [][]byte) {
	a := c.arguments(args)
	name, user := a.name("dot"), a.user()
	planRead(a, nil, 1, func(opt *shard.ReadOptions) (bool, error) { return c.server.node().unread.Shows(name, user, opt) }, appendTruth)
}

func clearDot(c *conn, args [][]byte) {
	a := c.arguments(args)
	name, user := a.name("dot"), a.user()
	a.options(a.keyOption())
	planWrite(a, subject{ofUser, user, name}, 1, func(w *shard.Write) (bool, error) { return c.server.node().unread.ClearDot(name, user, w) }, appendTruth)
}

// readBoard plans a reply about all channels or dots.
func readBoard(appendReply func(dst []byte, board *board.View, resp3 bool) []byte) func(*conn, [][]byte) {
	return func(c *conn, args [][]byte) {
		planRead(c.arguments(args), nil, 1, func(opt *shard.ReadOptions) (*board.View, error) { return c.server.node().unread.Board(opt) }, appendReply)
	}
}

func appendChannels(dst []byte, board *board.View, resp3 bool) []byte {
	dst = resp.AppendMap(dst, len(board.Channels), resp3)
	for _, name := range slices.Sorted(maps.Keys(board.Channels)) {
		channel := board.Channels[name]
		dst = resp.AppendMap(resp.AppendBulk(dst, name), 2, resp3)
		dst = resp.AppendInt(resp.AppendBulk(dst, "latest"), channel.Latest)
		dst = resp.AppendInt(resp.AppendBulk(dst, "retracted"), channel.Latest-channel.Unread(0))
	}
	return dst
}

func appendDots(dst []byte, board *board.View, resp3 bool) []byte {
	dst = resp.AppendMap(dst, len(board.Dots), resp3)
	for _, name := range slices.Sorted(maps.Keys(board.Dots)) {
		dot := board.Dots[name]
		dst = resp.AppendMap(resp.AppendBulk(dst, name), 2, resp3)
		dst = resp.AppendInt(resp.AppendBulk(dst, "fired"), dot.Fired)
		dst = resp.AppendTruth(resp.AppendBulk(dst, "new_users"), dot.NewUsers)
	}
	return dst
}
