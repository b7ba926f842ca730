package redis

import (
	"fmt"

	"github.com/countd/countd/api/redis/resp"
	"github.com/countd/countd/auth"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/unread"
)

// feedCommands are the commands about new posts of a user's followees.
func feedCommands() []spec {
	const group = "countd"
	change := func(do feedChange) func(*conn, [][]byte) {
		return func(c *conn, args [][]byte) { c.changeFeed(args, do) }
	}
	return []spec{
		{"countd.feed.reset", -2, joins | writes, noKeys, auth.Write.On(shard.KeyspaceFeed), group, "marks all posts as seen by a user", resetFeed},
		{"countd.feed.follow", -3, joins | writes, noKeys, auth.Write.On(shard.KeyspaceFeed), group, "adds followees, whose present posts count as seen", change((*unread.Numbers).Follow)},
		{"countd.feed.unfollow", -3, joins | writes, noKeys, auth.Write.On(shard.KeyspaceFeed), group, "removes followees and their unread posts", change((*unread.Numbers).Unfollow)},
		{"countd.feed.read", -3, joins | writes, noKeys, auth.Write.On(shard.KeyspaceFeed), group, "marks all posts of some followees as seen by a user", change((*unread.Numbers).ReadFeed)},
		{"countd.feed.unread", -2, joins, noKeys, auth.Read.On(shard.KeyspaceFeed), group, "number of posts that a user has not seen", feedUnread},
	}
}

type feedChange func(n *unread.Numbers, user uint64, followees []uint64, w *shard.Write) (unread.Feed, error)

// followees parses ids.
func followees(texts [][]byte) ([]uint64, error) {
	if len(texts) > unread.FolloweesMax {
		return nil, fieldError("followees", fmt.Sprintf("more than %d", unread.FolloweesMax))
	}
	ids := make([]uint64, len(texts))
	for i, text := range texts {
		var err error
		if ids[i], err = idOf(fmt.Sprintf("followees[%d]", i), text); err != nil {
			return nil, err
		}
	}
	return ids, nil
}

// changeFeed parses a user, followees and an optional KEY.
func (c *conn) changeFeed(args [][]byte, do feedChange) {
	b := c.batch
	user, err := userOf(args[1])
	if err == nil {
		args, err = b.keyAtEnd(args, 3)
	}
	var authors []uint64
	if err == nil {
		authors, err = followees(args[2:])
	}
	if b.failed(err) {
		return
	}
	b.writeFeed(user, func(w *shard.Write) (unread.Feed, error) { return do(c.server.node().unread, user, authors, w) })
}

// resetFeed parses a user and optionally FOLLOWEES, which may be none. Without the word the
// followees stay the same.
func resetFeed(c *conn, args [][]byte) {
	b := c.batch
	user, err := userOf(args[1])
	var authors []uint64
	if err == nil {
		err = options(args, 2, b.keyOption(args), listOption("followees", unread.FolloweesMax, 1, func(texts [][]byte) (err error) {
			authors, err = followees(texts)
			return err
		}))
	}
	if b.failed(err) {
		return
	}
	b.writeFeed(user, func(w *shard.Write) (unread.Feed, error) {
		return c.server.node().unread.ResetFeed(user, authors, nil, w)
	})
}

// writeFeed plans a write to a user's feed. It replies with the resulting number of new
// posts.
func (b *batch) writeFeed(user uint64, write func(w *shard.Write) (unread.Feed, error)) {
	var f unread.Feed
	b.pending += feedRows
	b.change(call{
		about: subject{users: true, user: user},
		write: func(w *shard.Write) (err error) {
			f, err = write(w)
			return err
		},
		reply: func(dst []byte, _ bool) []byte { return resp.AppendInt(dst, f.Unread) },
	})
}

// feedUnread replies with the sum, or with DETAIL also with each followee's number.
func feedUnread(c *conn, args [][]byte) {
	b := c.batch
	user, err := userOf(args[1])
	detail := false
	if err == nil {
		err = options(args, 2, option{"detail", func([][]byte) (int, error) {
			detail = true
			return 0, nil
		}})
	}
	if b.failed(err) {
		return
	}
	var f unread.Feed
	b.read(feedRows, call{
		read: func(opt *shard.ReadOptions) (err error) {
			f, err = c.server.node().unread.Feed(user, opt)
			return err
		},
		reply: func(dst []byte, resp3 bool) []byte {
			if !detail {
				return resp.AppendInt(dst, f.Unread)
			}
			return appendFeed(dst, &f, resp3)
		},
	})
}

func appendFeed(dst []byte, f *unread.Feed, resp3 bool) []byte {
	dst = resp.AppendInt(resp.AppendBulk(resp.AppendMap(dst, 2, resp3), "unread"), f.Unread)
	dst = resp.AppendMap(resp.AppendBulk(dst, "followees"), len(f.Detail), resp3)
	for _, followee := range f.Detail {
		dst = resp.AppendInt(resp.AppendBulk(dst, formatUint(followee.ID)), followee.Unread)
	}
	return dst
}
