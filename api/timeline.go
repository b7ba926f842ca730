package api

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/valyala/fasthttp"

	"github.com/countd/countd/auth"
	"github.com/countd/countd/client"
	"github.com/countd/countd/inbox"
	"github.com/countd/countd/internal/strictjson"
	"github.com/countd/countd/names"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/shard/errs"
)

// timelineRoutes are the calls about timelines and outboxes.
func timelineRoutes() []route {
	adds := auth.Ingest.On(kinds.KeyspaceUsers)
	return []route{
		{"GET /v1/timeline/{user}", "timeline", does{takesRead | takesUser | takesPosts | takesJoins, auth.Read.On(kinds.KeyspaceFeed, kinds.KeyspaceUsers), readTimeline}},
		{"GET /v1/outbox/{author}", "outbox_list", does{takesRead | takesAuthor | takesPosts, auth.Read.On(kinds.KeyspaceUsers), listOutbox}},
		{"POST /v1/outbox/{author}", "outbox_publish", does{takesWrite | takesBody | takesAuthor, adds, publishPost}},
		{"DELETE /v1/outbox/{author}/{id}", "outbox_remove", does{takesWrite | takesAuthor | removes, adds, removePost}},
	}
}

// publishPost adds a post to an author's outbox.
func publishPost(s *Server, ctx *fasthttp.RequestCtx, r *request) error {
	var post uint64
	err := r.allMembers(optional(ctx.Request.Body()), []string{"id"}, func(c *cursor, _ int) {
		var problem string
		if post, problem = r.texts.Read(&c.Cursor, postNames(r), listSlot); problem != "" {
			c.Fail("id", problem)
		}
	})
	if err != nil {
		return err
	}
	return r.posted(ctx, post, s.node().timelines.Publish)
}

func removePost(s *Server, ctx *fasthttp.RequestCtx, r *request) error {
	post, problem := r.texts.Parse(postNames(r), listSlot, r.name)
	if problem != "" {
		return invalid("id", problem)
	}
	return r.posted(ctx, post, s.node().timelines.Remove)
}

// posted calls change, which changes an outbox. It puts the post in the place of the path's id, so that
// an answer with an unknown outcome lists the post.
func (r *request) posted(ctx *fasthttp.RequestCtx, post uint64, change func(author, id uint64, w *shard.Write) (inbox.Published, error)) error {
	if err := named(&r.texts); err != nil {
		return err
	}
	author := r.id
	r.id = post
	r.texts.Keep(pathSlot, r.texts.Text(listSlot))
	p, err := change(author, post, &r.write)
	if err != nil {
		return err
	}
	return answerJSON(ctx, client.PostResult{Changed: p.Changed, Posts: p.Posts, Written: r.written()})
}

// limitOf returns the number of posts of a page.
func (a *asked) limitOf() int {
	return cmp.Or(a.limit, inbox.TimelinePostsDefault)
}

func listOutbox(s *Server, ctx *fasthttp.RequestCtx, r *request) error {
	if err := named(&r.texts); err != nil {
		return err
	}
	posts, more, err := s.node().timelines.Outbox(r.id, r.asked.post.ID, r.asked.hasAfter, r.asked.limitOf(), &r.read)
	if err != nil {
		return fmt.Errorf("cannot read outbox: %w", err)
	}
	ids, err := r.texts.Shown(postNames(r), len(posts), func(i int) uint64 { return posts[i].ID }, &r.read)
	if err != nil {
		return err
	}
	answerLong(ctx, 32+32*len(posts), func(dst []byte) []byte {
		dst = append(dst, `{"posts":[`...)
		for i, p := range posts {
			dst = append(ids.AppendJSON(append(comma(dst, i), `{"id":`...), i, p.ID), '}')
		}
		dst = append(dst, ']')
		if more {
			dst = strictjson.AppendID(append(dst, `,"cursor":`...), posts[len(posts)-1].ID)
		}
		return append(dst, '}')
	})
	return nil
}

// pages is a pool of timeline pages.
var pages = sync.Pool{New: func() any { return &inbox.TimelinePage{} }}

func readTimeline(s *Server, ctx *fasthttp.RequestCtx, r *request) error {
	a := &r.asked
	q := inbox.TimelineQuery{User: r.id, Group: a.group, Limit: a.limitOf(), After: a.post, HasAfter: a.hasAfter, Counts: a.counts}
	if err := r.readMemberOf(&q); err != nil {
		return err
	}
	if q.Counts != nil {
		var ok bool
		if q.RowIDs, ok = r.texts.Names.Translate(postNames(r), namesOf(q.Counts)); !ok {
			return invalid("counts", "the ids of keyspace "+q.Counts.Name+" are numbers, and those of posts are texts")
		}
	}
	if err := named(&r.texts); err != nil {
		return err
	}
	p := pages.Get().(*inbox.TimelinePage)
	defer pages.Put(p)
	if err := s.node().timelines.Read(&q, &r.read, p); err != nil {
		return fmt.Errorf("cannot read timeline: %w", err)
	}
	ids, err := r.texts.Shown(postNames(r), len(p.Posts), func(i int) uint64 { return p.Posts[i].ID }, &r.read)
	if err != nil {
		return err
	}
	authors, err := r.texts.Shown(namesOf(r.keyspace), len(p.Posts), func(i int) uint64 { return p.Posts[i].Author }, &r.read)
	if err != nil {
		return err
	}
	answerLong(ctx, 64+128*len(p.Posts), func(dst []byte) []byte { return appendTimeline(dst, &q, p, ids, authors) })
	return nil
}

// readMemberOf parses the query parameter "member", a list of columns, into q.Member. The columns
// belong to the keyspace in the parameter "counts", or to posts if there is none.
func (r *request) readMemberOf(q *inbox.TimelineQuery) error {
	a := &r.asked
	if a.in == "" {
		return nil
	}
	ks := a.counts
	if ks == nil {
		if err := r.may(auth.Read, []byte(kinds.KeyspacePosts)); err != nil {
			return err
		}
		if ks = r.backend.Keyspace(kinds.KeyspacePosts); ks == nil {
			return errNoCluster
		}
	}
	for name := range strings.SplitSeq(a.in, ",") {
		at, err := r.columnIn(&ks, []byte(name))
		if err != nil {
			return err
		}
		switch {
		case at < 0:
			return invalid("member", noColumnOf(ks))
		case slices.Contains(q.Member, uint8(at)):
			return invalid("member", strictjson.GivenTwice)
		}
		q.Member = append(q.Member, uint8(at))
	}
	if sets := len(q.Member) * a.limitOf(); sets > lookupsMax {
		return invalid("member", fmt.Sprintf("%d posts of %d columns are more than %d sets: ask for fewer columns or posts", a.limitOf(), len(q.Member), lookupsMax))
	}
	q.Sets = ks
	return nil
}

// appendTimeline appends a page. ids and authors are results of Slots.Shown.
func appendTimeline(dst []byte, q *inbox.TimelineQuery, p *inbox.TimelinePage, ids, authors names.Shown) []byte {
	dst = append(dst, `{"posts":[`...)
	for i, post := range p.Posts {
		dst = ids.AppendJSON(append(comma(dst, i), `{"id":`...), i, post.ID)
		dst = authors.AppendJSON(append(dst, `,"author":`...), i, post.Author)
		if q.Counts != nil {
			width := len(q.Counts.Columns)
			dst = appendWholeRow(append(dst, `,"counts":`...), q.Counts, p.Counts[i*width:(i+1)*width])
		}
		if len(q.Member) > 0 {
			dst = appendIn(dst, q.Sets, q.Member, p.Member, i, len(p.Posts))
		}
		dst = append(dst, '}')
	}
	dst = append(dst, ']')
	if p.More {
		dst = append(inbox.AppendCursor(append(dst, `,"cursor":"`...), p.Posts[len(p.Posts)-1]), '"')
	}
	return append(appendUnreadable(dst, p.Unreadable), '}')
}

// readPostCursor parses a cursor, which names the last post of the previous page: its id and, for a
// timeline, its author.
func (r *request) readPostCursor(value []byte) error {
	a, q := &r.asked, inbox.TimelineQuery{}
	if r.takes&takesJoins == 0 {
		a.post.ID, a.hasAfter = strictjson.ParseUint64(value)
	} else {
		a.hasAfter = q.ParseCursor(value)
		a.post = q.After
	}
	if !a.hasAfter {
		return invalid("cursor", notCursor)
	}
	return nil
}

func (r *request) readCountsOf(name []byte) error {
	if err := r.may(auth.Read, name); err != nil {
		return err
	}
	ks, err := r.lookUp(string(name))
	if err != nil {
		return err
	}
	if ks == nil || ks.Kind != kinds.Counters {
		return &fault{
			status: fasthttp.StatusNotFound, code: codeUnknownKeyspace,
			message: "counts: " + errs.ErrUnknownKeyspace.Error(), field: "counts",
		}
	}
	r.asked.counts = ks
	return nil
}

// Compile-time check that a node serves timelines.
var _ inbox.Node = (*shard.Node)(nil)
