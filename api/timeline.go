package api

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/valyala/fasthttp"

	"github.com/countd/countd/api/operate"
	"github.com/countd/countd/auth"
	"github.com/countd/countd/client"
	"github.com/countd/countd/inbox"
	"github.com/countd/countd/internal/strictjson"
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
		{"POST /v1/outbox/{author}", "outbox_publish", does{takesWrite | takesBody | takesAuthor, adds, rare(publishPost, "id")}},
		{"DELETE /v1/outbox/{author}/{id}", "outbox_remove", does{takesWrite | takesAuthor, adds, rare(removePost)}},
	}
}

// publishPost adds a post to an author's outbox.
func publishPost(_ context.Context, s *Server, r *request, body *struct {
	ID client.ID `json:"id"`
}) (client.PostResult, error) {
	return r.posted(uint64(body.ID), s.node().timelines.Publish)
}

func removePost(_ context.Context, s *Server, r *request, _ *operate.Nothing) (client.PostResult, error) {
	id, ok := strictjson.ParseUint64(r.name)
	if !ok {
		return client.PostResult{}, invalid("id", strictjson.NotUint64)
	}
	return r.posted(id, s.node().timelines.Remove)
}

// posted calls change, which changes an outbox. It sets r.id to the post's id, so that an answer
// with an unknown outcome lists that id.
func (r *request) posted(id uint64, change func(author, id uint64, w *shard.Write) (inbox.Published, error)) (client.PostResult, error) {
	author := r.id
	r.id = id
	p, err := change(author, id, &r.write)
	return client.PostResult{Changed: p.Changed, Posts: p.Posts, Written: r.written()}, err
}

// limitOf returns the number of posts of a page.
func (a *asked) limitOf() int {
	return cmp.Or(a.limit, inbox.TimelinePostsDefault)
}

func listOutbox(s *Server, ctx *fasthttp.RequestCtx, r *request) error {
	posts, more, err := s.node().timelines.Outbox(r.id, r.asked.post.ID, r.asked.hasAfter, r.asked.limitOf(), &r.read)
	if err != nil {
		return fmt.Errorf("cannot read outbox: %w", err)
	}
	answerLong(ctx, 32+32*len(posts), func(dst []byte) []byte {
		dst = append(dst, `{"posts":[`...)
		for i, p := range posts {
			dst = append(appendID(append(comma(dst, i), `{"id":`...), p.ID), '}')
		}
		dst = append(dst, ']')
		if more {
			dst = appendID(append(dst, `,"cursor":`...), posts[len(posts)-1].ID)
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
	p := pages.Get().(*inbox.TimelinePage)
	defer pages.Put(p)
	if err := s.node().timelines.Read(&q, &r.read, p); err != nil {
		return fmt.Errorf("cannot read timeline: %w", err)
	}
	answerLong(ctx, 64+128*len(p.Posts), func(dst []byte) []byte { return appendTimeline(dst, &q, p) })
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

// appendTimeline appends a page.
func appendTimeline(dst []byte, q *inbox.TimelineQuery, p *inbox.TimelinePage) []byte {
	dst = append(dst, `{"posts":[`...)
	for i, post := range p.Posts {
		dst = appendID(append(comma(dst, i), `{"id":`...), post.ID)
		dst = appendID(append(dst, `,"author":`...), post.Author)
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
