package redis

import (
	"github.com/countd/countd/api/redis/resp"
	"github.com/countd/countd/auth"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/unread"
)

// feedCommands returns the commands about new posts of a user's followees.
func feedCommands() []spec {
	const group = "countd"
	read, write := auth.Read.On(shard.KeyspaceFeed), auth.Write.On(shard.KeyspaceFeed)
	return []spec{
		{"countd.feed.reset", -2, joins | writes, noKeys, write, group, "marks all posts as seen by a user", resetFeed},
		{"countd.feed.follow", -3, joins | writes, noKeys, write, group, "adds followees, whose present posts count as seen", changeFeed((*unread.Numbers).Follow)},
		{"countd.feed.unfollow", -3, joins | writes, noKeys, write, group, "removes followees and their unread posts", changeFeed((*unread.Numbers).Unfollow)},
		{"countd.feed.read", -3, joins | writes, noKeys, write, group, "marks all posts of some followees as seen by a user", changeFeed((*unread.Numbers).ReadFeed)},
		{"countd.feed.unread", -2, joins, noKeys, read, group, "number of posts that a user has not seen", feedUnread},
	}
}

// changeFeed parses a user, followees and an optional KEY.
func changeFeed(do func(n *unread.Numbers, user uint64, followees []uint64, w *shard.Write) (unread.Feed, error)) func(*conn, [][]byte) {
	return func(c *conn, args [][]byte) {
		a := c.arguments(args)
		user, followees := a.user(), a.followees()
		writeFeed(a, user, func(w *shard.Write) (unread.Feed, error) { return do(c.server.node().unread, user, followees, w) })
	}
}

// resetFeed parses a user and optionally FOLLOWEES, a list that may be empty. Without FOLLOWEES the
// followees stay the same.
func resetFeed(c *conn, args [][]byte) {
	a := c.arguments(args)
	user, followees := a.user(), []uint64(nil)
	a.options(a.keyOption(), listOption("followees", unread.FolloweesMax, 1, func(texts [][]byte) (err error) {
		followees, err = followeesOf(texts)
		return err
	}))
	writeFeed(a, user, func(w *shard.Write) (unread.Feed, error) {
		return c.server.node().unread.ResetFeed(user, followees, nil, w)
	})
}

// writeFeed plans a write to a user's feed. It replies with the resulting number of new
// posts.
func writeFeed(a *arguments, user uint64, write func(w *shard.Write) (unread.Feed, error)) {
	planWrite(a, subject{kind: ofUser, id: user}, feedRows, write, func(dst []byte, f unread.Feed, _ bool) []byte { return resp.AppendInt(dst, f.Unread) })
}

// feedUnread replies with the sum, or with DETAIL also with each followee's number.
func feedUnread(c *conn, args [][]byte) {
	a := c.arguments(args)
	user, detail := a.user(), false
	a.options(flagOption("detail", &detail))
	planRead(a, nil, feedRows,
		func(opt *shard.ReadOptions) (unread.Feed, error) { return c.server.node().unread.Feed(user, opt) },
		func(dst []byte, f unread.Feed, resp3 bool) []byte {
			if !detail {
				return resp.AppendInt(dst, f.Unread)
			}
			dst = resp.AppendInt(resp.AppendBulk(resp.AppendMap(dst, 2, resp3), "unread"), f.Unread)
			dst = resp.AppendMap(resp.AppendBulk(dst, "followees"), len(f.Detail), resp3)
			for _, followee := range f.Detail {
				dst = resp.AppendInt(resp.AppendBulk(dst, formatUint(followee.ID)), followee.Unread)
			}
			return dst
		})
}
