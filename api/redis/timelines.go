package redis

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/countd/countd/api/redis/resp"
	"github.com/countd/countd/auth"
	"github.com/countd/countd/inbox"
	"github.com/countd/countd/internal/strictjson"
	"github.com/countd/countd/names"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/feed"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/shard"
)

// timelineCommands are the commands about outboxes, timelines and the new posts of a user's
// followees.
func timelineCommands() []spec {
	const group = "countd"
	adds, reads := auth.Ingest.On(kinds.KeyspaceUsers), auth.Read.On(kinds.KeyspaceUsers)
	writeFeeds, readFeeds := auth.Write.On(kinds.KeyspaceFeed), auth.Read.On(kinds.KeyspaceFeed)
	return []spec{
		{name: "countd.outbox.add", arity: -3, traits: joins | writes, keys: noKeys, need: adds, group: group, does: "publishes a post of an author and counts it", call: changeOutbox((*inbox.Timelines).Publish, false)},
		{name: "countd.outbox.rem", arity: -3, traits: joins | writes, keys: noKeys, need: adds, group: group, does: "removes a post of an author and takes it from the count", call: changeOutbox((*inbox.Timelines).Remove, true)},
		{name: "countd.outbox.list", arity: -2, traits: joins, keys: noKeys, need: reads, group: group, does: "posts of an author, newest first", call: listOutbox},
		// Planned commands may change counts of the page, so they are executed first.
		{name: "countd.timeline", arity: -2, traits: joins | unplanned, keys: noKeys, need: auth.Read.On(kinds.KeyspaceFeed, kinds.KeyspaceUsers), group: group, does: "posts of a user's followees, newest first", call: readTimeline},
		{name: "countd.feed.reset", arity: -2, traits: joins | writes, keys: noKeys, need: writeFeeds, group: group, does: "marks all posts as seen by a user", call: resetFeed},
		{name: "countd.feed.follow", arity: -3, traits: joins | writes, keys: noKeys, need: writeFeeds, group: group, does: "adds followees, whose present posts count as seen", call: changeFeed((*inbox.Numbers).Follow, false)},
		{name: "countd.feed.unfollow", arity: -3, traits: joins | writes, keys: noKeys, need: writeFeeds, group: group, does: "removes followees and their unread posts", call: changeFeed((*inbox.Numbers).Unfollow, true)},
		{name: "countd.feed.read", arity: -3, traits: joins | writes, keys: noKeys, need: writeFeeds, group: group, does: "marks all posts of some followees as seen by a user", call: changeFeed((*inbox.Numbers).ReadFeed, true)},
		{name: "countd.feed.unread", arity: -2, traits: joins, keys: noKeys, need: readFeeds, group: group, does: "number of posts that a user has not seen", call: feedUnread},
	}
}

// changeOutbox returns a command with an author, a post and an optional KEY. The command replies
// with 1 if it added or removed the post, else 0.
func changeOutbox(do func(t *inbox.Timelines, author, id uint64, w *shard.Write) (inbox.Published, error), removes bool) func(*arguments) {
	return func(a *arguments) {
		a.removes = removes
		author, id := a.id("author", kinds.KeyspaceUsers), a.id("id", kinds.KeyspacePosts)
		a.Options(a.keyOption())
		planWrite(a, subject{kind: ofAuthor}, author, 1, func(w *shard.Write) (bool, error) {
			p, err := do(a.node().timelines, *author, *id, w)
			return p.Changed, err
		}, appendTruth)
	}
}

var errBadCursor = resp.FieldError("cursor", "not a cursor of this command")

// listOutbox replies with ids. The last id is the CURSOR of the next page.
func listOutbox(a *arguments) {
	author, limit, after, hasAfter := a.id("author", kinds.KeyspaceUsers), inbox.TimelinePostsDefault, new(uint64), false
	a.Options(resp.LimitOption(&limit, inbox.TimelinePostsMax), resp.TextOption("cursor", func(text []byte) error {
		if hasAfter = true; a.parseID("cursor", kinds.KeyspacePosts, text, after) != nil {
			return errBadCursor
		}
		return nil
	}))
	space, err := a.node().namesOf(kinds.KeyspacePosts)
	a.Fail(err)
	var ids names.Shown
	planRead(a, nil, feedRows, func(opt *shard.ReadOptions) ([]counters.Post, error) {
		if hasAfter && *after == 0 && space != "" {
			return nil, errBadCursor
		}
		posts, _, err := a.node().timelines.Outbox(*author, *after, hasAfter, limit, opt)
		if err == nil {
			ids, err = a.node().names.Show(space, names.IDs(posts, func(p counters.Post) uint64 { return p.ID }), opt)
		}
		return posts, err
	}, func(dst []byte, posts []counters.Post, _ bool) []byte {
		dst = resp.AppendArray(dst, len(posts))
		for i, p := range posts {
			dst = appendID(dst, ids, i, p.ID)
		}
		return dst
	})
}

// readTimeline parses a user, and optionally LIMIT, CURSOR, GROUP, COUNTS and MEMBER.
func readTimeline(a *arguments) {
	c, user, q := a.b.conn, a.user(), inbox.TimelineQuery{Limit: inbox.TimelinePostsDefault}
	var sets []byte // columns of MEMBER, separated by commas
	a.Options(resp.LimitOption(&q.Limit, inbox.TimelinePostsMax),
		resp.TextOption("cursor", func(text []byte) error {
			if !q.ParseCursor(text) {
				return errBadCursor
			}
			return nil
		}),
		resp.TextOption("group", func(name []byte) error {
			if q.Group = string(name); !feed.ValidGroupName(name) {
				return resp.FieldError("group", inbox.GroupRule)
			}
			return nil
		}),
		resp.TextOption("counts", func(name []byte) error {
			if !c.mayRead(string(name)) {
				return resp.Error("NOPERM the user may not read the keyspace of the counts")
			}
			const problem = "no such keyspace of counters"
			if q.Counts = a.node().Keyspace(string(name)); q.Counts == nil {
				return unknown(name, "counts: "+problem)
			} else if q.Counts.Kind != kinds.Counters {
				return resp.FieldError("counts", problem)
			}
			return nil
		}),
		resp.TextOption("member", func(columns []byte) error { sets = columns; return nil }))
	if a.Err == nil && sets != nil {
		a.Fail(c.memberOption(&q, sets))
	}
	users, err := a.node().namesOf(kinds.KeyspaceUsers)
	a.Fail(err)
	posts, err := a.node().namesOf(kinds.KeyspacePosts)
	a.Fail(err)
	if q.Counts != nil {
		var ok bool
		if q.RowIDs, ok = a.node().names.Translate(posts, q.Counts.Names); !ok {
			a.Fail(resp.FieldError("counts", "the ids of the keyspace are numbers, and those of posts are texts"))
		}
	}
	var authors, ids names.Shown
	planRead(a, nil, feedRows, func(opt *shard.ReadOptions) (*inbox.TimelinePage, error) {
		var p inbox.TimelinePage
		q.User = *user
		writes := []*written{c.server.writtenTo(kinds.KeyspaceUsers), c.server.writtenTo(kinds.KeyspaceUnread)}
		for _, ks := range []*shard.Keyspace{q.Counts, q.Sets} {
			if ks != nil && !slices.Contains(writes, c.server.writtenTo(ks.Name)) {
				writes = append(writes, c.server.writtenTo(ks.Name))
			}
		}
		var seen shard.ReadOptions
		c.freshness(&seen, opt.Deadline, writes...)
		err := seeing(&seen, func() error { return a.node().timelines.Read(&q, &seen, &p) }, writes...)
		if err == nil {
			authors, err = c.server.node().names.Show(users, names.IDs(p.Posts, func(p counters.Post) uint64 { return p.Author }), opt)
		}
		if err == nil {
			ids, err = c.server.node().names.Show(posts, names.IDs(p.Posts, func(p counters.Post) uint64 { return p.ID }), opt)
		}
		return &p, err
	}, func(dst []byte, p *inbox.TimelinePage, resp3 bool) []byte {
		return appendTimeline(dst, &q, p, ids, authors, resp3)
	})
}

// memberOption parses the columns of MEMBER, separated by commas. They belong to the keyspace of
// COUNTS or, without COUNTS, to posts.
func (c *conn) memberOption(q *inbox.TimelineQuery, columns []byte) error {
	if q.Sets = q.Counts; q.Sets == nil {
		if !c.mayRead(kinds.KeyspacePosts) {
			return resp.Error("NOPERM the user may not read the keyspace of the members")
		}
		if q.Sets = c.server.node().Keyspace(kinds.KeyspacePosts); q.Sets == nil {
			return errNoKeyspaces
		}
	}
	for name := range bytes.SplitSeq(columns, []byte(",")) {
		at := slices.Index(q.Sets.Columns, string(name)) // dropped columns have the name ""
		switch {
		case at < 0 || len(name) == 0:
			return unknown(name, "member: no such column")
		case slices.Contains(q.Member, uint8(at)):
			return resp.FieldError("member", strictjson.GivenTwice)
		}
		q.Member = append(q.Member, uint8(at))
	}
	if sets := len(q.Member) * q.Limit; sets > rowsMax {
		return resp.FieldError("member", fmt.Sprintf("%d posts of %d columns are more than %d sets", q.Limit, len(q.Member), rowsMax))
	}
	return nil
}

// appendTimeline appends a map of posts and cursor, which is null for the last page. A post is a
// map of id, author and, if the command asks for them, counts and member.
func appendTimeline(dst []byte, q *inbox.TimelineQuery, p *inbox.TimelinePage, ids, authors names.Shown, resp3 bool) []byte {
	members, postMembers := 2, 2
	if len(p.Unreadable) > 0 {
		members++
	}
	if q.Counts != nil {
		postMembers++
	}
	if len(q.Member) > 0 {
		postMembers++
	}
	dst = resp.AppendArray(resp.AppendBulk(resp.AppendMap(dst, members, resp3), "posts"), len(p.Posts))
	for i, post := range p.Posts {
		dst = appendID(resp.AppendBulk(resp.AppendMap(dst, postMembers, resp3), "id"), ids, i, post.ID)
		dst = appendID(resp.AppendBulk(dst, "author"), authors, i, post.Author)
		if q.Counts != nil {
			width := len(q.Counts.Columns)
			dst = resp.AppendMap(resp.AppendBulk(dst, "counts"), len(q.Counts.ColumnNames()), resp3)
			for column, name := range q.Counts.Columns {
				if name != "" {
					dst = resp.AppendInt(resp.AppendBulk(dst, name), p.Counts[i*width+column])
				}
			}
		}
		if len(q.Member) > 0 {
			dst = resp.AppendMap(resp.AppendBulk(dst, "member"), len(q.Member), resp3)
			for j, column := range q.Member {
				dst = resp.AppendTruth(resp.AppendBulk(dst, q.Sets.Columns[column]), p.Member[j*len(p.Posts)+i])
			}
		}
	}
	dst = resp.AppendBulk(dst, "cursor")
	if p.More {
		dst = resp.AppendBulk(dst, inbox.AppendCursor(nil, p.Posts[len(p.Posts)-1]))
	} else {
		dst = resp.AppendNull(dst, resp3)
	}
	if len(p.Unreadable) == 0 {
		return dst
	}
	dst = resp.AppendArray(resp.AppendBulk(dst, "unreadable_shards"), len(p.Unreadable))
	for _, s := range p.Unreadable {
		dst = resp.AppendInt(dst, int64(s))
	}
	return dst
}

// changeFeed returns a command with a user, followees and an optional KEY.
func changeFeed(do func(n *inbox.Numbers, user uint64, followees []uint64, w *shard.Write) (inbox.Feed, error), removes bool) func(*arguments) {
	return func(a *arguments) {
		a.removes = removes
		user, followees := a.user(), a.followees()
		writeFeed(a, user, func(w *shard.Write) (inbox.Feed, error) { return do(a.node().unread, *user, followees, w) })
	}
}

// resetFeed parses a user and optionally FOLLOWEES, whose list may be empty. Without FOLLOWEES,
// the user's followees stay the same.
func resetFeed(a *arguments) {
	user, followees := a.user(), []uint64(nil)
	a.Options(a.keyOption(), resp.ListOption("followees", inbox.FolloweesMax, 1, func(texts [][]byte) (err error) {
		followees, err = a.followeesOf(texts)
		return err
	}))
	writeFeed(a, user, func(w *shard.Write) (inbox.Feed, error) {
		return a.node().unread.ResetFeed(*user, followees, nil, w)
	})
}

// writeFeed plans a write to a user's feed. It replies with the resulting number of new
// posts.
func writeFeed(a *arguments, user *uint64, write func(w *shard.Write) (inbox.Feed, error)) {
	planWrite(a, subject{kind: ofUser}, user, feedRows, write, func(dst []byte, f inbox.Feed, _ bool) []byte { return resp.AppendInt(dst, f.Unread) })
}

// feedUnread replies with the number of new posts. With DETAIL, it also replies with the number for
// each followee.
func feedUnread(a *arguments) {
	user, detail := a.user(), false
	a.Options(resp.FlagOption("detail", &detail))
	space, err := a.node().namesOf(kinds.KeyspaceUsers)
	a.Fail(err)
	var ids names.Shown
	planRead(a, nil, feedRows,
		func(opt *shard.ReadOptions) (inbox.Feed, error) {
			f, err := a.node().unread.Feed(*user, opt)
			if err == nil && detail {
				ids, err = a.node().names.Show(space, names.IDs(f.Detail, func(u inbox.FolloweeUnread) uint64 { return u.ID }), opt)
			}
			return f, err
		},
		func(dst []byte, f inbox.Feed, resp3 bool) []byte {
			if !detail {
				return resp.AppendInt(dst, f.Unread)
			}
			dst = resp.AppendInt(resp.AppendBulk(resp.AppendMap(dst, 2, resp3), "unread"), f.Unread)
			dst = resp.AppendMap(resp.AppendBulk(dst, "followees"), len(f.Detail), resp3)
			for i, followee := range f.Detail {
				dst = resp.AppendInt(appendID(dst, ids, i, followee.ID), followee.Unread)
			}
			return dst
		})
}
