package redis

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"

	"github.com/countd/countd/api/redis/resp"
	"github.com/countd/countd/auth"
	"github.com/countd/countd/internal/strictjson"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/feed"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/timeline"
)

// timelineCommands returns the commands about outboxes and timelines.
func timelineCommands() []spec {
	const group = "countd"
	adds, reads := auth.Ingest.On(shard.KeyspaceUsers), auth.Read.On(shard.KeyspaceUsers)
	return []spec{
		{"countd.outbox.add", -3, joins | writes, noKeys, adds, group, "publishes a post of an author and counts it", changeOutbox((*timeline.Timelines).Publish)},
		{"countd.outbox.rem", -3, joins | writes, noKeys, adds, group, "removes a post of an author and takes it from the count", changeOutbox((*timeline.Timelines).Remove)},
		{"countd.outbox.list", -2, joins, noKeys, reads, group, "posts of an author, newest first", listOutbox},
		// Planned commands may change counts of the page, so they are executed first.
		{"countd.timeline", -2, joins | unplanned, noKeys, auth.Read.On(shard.KeyspaceFeed, shard.KeyspaceUsers), group, "posts of a user's followees, newest first", readTimeline},
	}
}

// changeOutbox parses an author, a post and an optional KEY. It replies with 1 if the post
// was added or removed, else 0.
func changeOutbox(do func(t *timeline.Timelines, author, id uint64, w *shard.Write) (timeline.Published, error)) func(*conn, [][]byte) {
	return func(c *conn, args [][]byte) {
		a := c.arguments(args)
		author, id := a.id("author"), a.id("id")
		a.options(a.keyOption())
		planWrite(a, subject{kind: ofAuthor, id: author}, 1, func(w *shard.Write) (bool, error) {
			p, err := do(c.server.node().timelines, author, id, w)
			return p.Changed, err
		}, appendTruth)
	}
}

// limitOption returns LIMIT, which has the number of posts of a page.
func limitOption(limit *int) option {
	return textOption("limit", func(text []byte) error {
		n, ok := strictjson.ParseUint64(text)
		if !ok || n < 1 || n > timeline.LimitMax {
			return fieldError("limit", fmt.Sprintf("not an integer from 1 to %d", timeline.LimitMax))
		}
		*limit = int(n)
		return nil
	})
}

var errBadCursor = fieldError("cursor", "not a cursor of this command")

// listOutbox replies with ids. The last one is the CURSOR of the next page.
func listOutbox(c *conn, args [][]byte) {
	a := c.arguments(args)
	author, limit, after, hasAfter := a.id("author"), timeline.LimitDefault, uint64(0), false
	a.options(limitOption(&limit), textOption("cursor", func(text []byte) error {
		if after, hasAfter = parseID(text); !hasAfter {
			return errBadCursor
		}
		return nil
	}))
	planRead(a, nil, feedRows, func(opt *shard.ReadOptions) ([]counters.Post, error) {
		posts, _, err := c.server.node().timelines.Outbox(author, after, hasAfter, limit, opt)
		return posts, err
	}, func(dst []byte, posts []counters.Post, _ bool) []byte {
		dst = resp.AppendArray(dst, len(posts))
		for _, p := range posts {
			dst = resp.AppendBulk(dst, formatUint(p.ID))
		}
		return dst
	})
}

// readTimeline parses a user, and optionally LIMIT, CURSOR, GROUP, COUNTS and MEMBER.
func readTimeline(c *conn, args [][]byte) {
	a := c.arguments(args)
	q := timeline.Query{User: a.user(), Limit: timeline.LimitDefault}
	var sets []byte // columns of MEMBER, separated by commas
	a.options(limitOption(&q.Limit),
		textOption("cursor", func(text []byte) error { return parsePostCursor(&q, text) }),
		textOption("group", func(name []byte) error {
			if q.Group = string(name); !feed.ValidGroupName(name) {
				return fieldError("group", fmt.Sprintf("not 1 to %d of A-Z a-z 0-9 . _ -", feed.GroupNameBytesMax))
			}
			return nil
		}),
		textOption("counts", func(name []byte) error {
			if !c.mayRead(string(name)) {
				return codedError("NOPERM the user may not read the keyspace of the counts")
			}
			const problem = "no such keyspace of counters"
			if q.Counts = c.server.node().Keyspace(string(name)); q.Counts == nil {
				return unknown(name, "counts: "+problem)
			} else if q.Counts.Kind != shard.KindCounters {
				return fieldError("counts", problem)
			}
			return nil
		}),
		textOption("member", func(columns []byte) error { sets = columns; return nil }))
	if a.err == nil && sets != nil {
		a.fail(c.memberOption(&q, sets))
	}
	planRead(a, nil, feedRows, func(opt *shard.ReadOptions) (*timeline.Page, error) {
		var p timeline.Page
		seen, of := *opt, c.writtenToTimeline(&q)
		for _, w := range of {
			if token := w.token.Load(); token != nil {
				seen.Token.Cluster, seen.Token.At = token.Cluster, slices.Concat(seen.Token.At, token.At)
			}
		}
		err := seeing(&seen, func() error { return c.server.node().timelines.Read(&q, &seen, &p) }, of...)
		return &p, err
	}, func(dst []byte, p *timeline.Page, resp3 bool) []byte { return appendTimeline(dst, &q, p, resp3) })
}

// memberOption parses the columns of MEMBER, separated by commas. They belong to the keyspace of
// COUNTS, or else to posts.
func (c *conn) memberOption(q *timeline.Query, columns []byte) error {
	if q.Sets = q.Counts; q.Sets == nil {
		if !c.mayRead(shard.KeyspacePosts) {
			return codedError("NOPERM the user may not read the keyspace of the members")
		}
		if q.Sets = c.server.node().Keyspace(shard.KeyspacePosts); q.Sets == nil {
			return errNoKeyspaces
		}
	}
	for name := range bytes.SplitSeq(columns, []byte(",")) {
		at := slices.Index(q.Sets.Columns, string(name)) // dropped columns have the name ""
		switch {
		case at < 0 || len(name) == 0:
			return unknown(name, "member: no such column")
		case slices.Contains(q.Member, uint8(at)):
			return fieldError("member", "given twice")
		}
		q.Member = append(q.Member, uint8(at))
	}
	if sets := len(q.Member) * q.Limit; sets > rowsMax {
		return fieldError("member", fmt.Sprintf("%d posts of %d columns are more than %d sets", q.Limit, len(q.Member), rowsMax))
	}
	return nil
}

// writtenToTimeline returns the tokens of the keyspaces of COUNTS and MEMBER, and none for a
// connection that reads stale rows.
func (c *conn) writtenToTimeline(q *timeline.Query) (of []*written) {
	if c.stale {
		return nil
	}
	if q.Counts != nil {
		of = append(of, c.server.writtenTo(q.Counts.Name))
	}
	if q.Sets != nil && q.Sets != q.Counts {
		of = append(of, c.server.writtenTo(q.Sets.Name))
	}
	return of
}

// parsePostCursor parses the last post of the previous page: id.author.
func parsePostCursor(q *timeline.Query, text []byte) error {
	id, author, _ := bytes.Cut(text, []byte("."))
	var okID, okAuthor bool
	q.After.ID, okID = parseID(id)
	q.After.Author, okAuthor = parseID(author)
	if q.HasAfter = okID && okAuthor; !q.HasAfter {
		return errBadCursor
	}
	return nil
}

// appendTimeline appends a map of posts and cursor, which is null for the last page. A post is a
// map of id, author and, if the command asks for them, counts and member.
func appendTimeline(dst []byte, q *timeline.Query, p *timeline.Page, resp3 bool) []byte {
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
		dst = resp.AppendBulk(resp.AppendBulk(resp.AppendMap(dst, postMembers, resp3), "id"), formatUint(post.ID))
		dst = resp.AppendBulk(resp.AppendBulk(dst, "author"), formatUint(post.Author))
		if q.Counts != nil {
			width := len(q.Counts.Columns)
			dst = resp.AppendMap(resp.AppendBulk(dst, "counts"), len(q.Counts.Names()), resp3)
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
		last := p.Posts[len(p.Posts)-1]
		text := strconv.AppendUint(nil, last.ID, 10)
		dst = resp.AppendBulk(dst, strconv.AppendUint(append(text, '.'), last.Author, 10))
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
