package api

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/valyala/fasthttp"

	"github.com/countd/countd/auth"
	"github.com/countd/countd/client"
	"github.com/countd/countd/internal/strictjson"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/timeline"
)

// publishPost adds a post to an author's outbox.
func publishPost(_ context.Context, s *Server, r *request, body *struct {
	ID client.ID `json:"id"`
}) (client.PostResult, error) {
	return r.posted(uint64(body.ID), s.node().timelines.Publish)
}

func removePost(_ context.Context, s *Server, r *request, _ *nothing) (client.PostResult, error) {
	id, ok := strictjson.ParseUint64(r.name)
	if !ok {
		return client.PostResult{}, invalid("id", notUint64)
	}
	return r.posted(id, s.node().timelines.Remove)
}

// posted changes an outbox. It sets r.id to the post, so that a fault of unknown outcome names the
// post.
func (r *request) posted(id uint64, change func(author, id uint64, w *shard.Write) (timeline.Published, error)) (client.PostResult, error) {
	author := r.id
	r.id = id
	p, err := change(author, id, &r.write)
	return client.PostResult{Changed: p.Changed, Posts: p.Posts, Written: r.written()}, err
}

// limitOf returns the number of posts of a page.
func (a *asked) limitOf() int {
	if a.limit == 0 {
		return timeline.LimitDefault
	}
	return a.limit
}

func (s *Server) listOutbox(ctx *fasthttp.RequestCtx, r *request) error {
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

// pages pools the memory of pages of timelines.
var pages = sync.Pool{New: func() any { return &timeline.Page{} }}

func (s *Server) readTimeline(ctx *fasthttp.RequestCtx, r *request) error {
	a := &r.asked
	q := timeline.Query{User: r.id, Group: a.group, Limit: a.limitOf(), After: a.post, HasAfter: a.hasAfter, Counts: a.counts}
	if err := r.readMemberOf(&q); err != nil {
		return err
	}
	p := pages.Get().(*timeline.Page)
	defer pages.Put(p)
	if err := s.node().timelines.Read(&q, &r.read, p); err != nil {
		return fmt.Errorf("cannot read timeline: %w", err)
	}
	answerLong(ctx, 64+128*len(p.Posts), func(dst []byte) []byte { return appendTimeline(dst, &q, p) })
	return nil
}

// readMemberOf reads the query parameter "member" into q.Member: the columns that it names. They
// belong to the keyspace that the parameter "counts" names, or else to posts.
func (r *request) readMemberOf(q *timeline.Query) error {
	a := &r.asked
	if a.in == "" {
		return nil
	}
	ks := a.counts
	if ks == nil {
		if err := r.may(auth.Read, []byte(shard.KeyspacePosts)); err != nil {
			return err
		}
		if ks = r.backend.Keyspace(shard.KeyspacePosts); ks == nil {
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
			return invalid("member", givenTwice)
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
func appendTimeline(dst []byte, q *timeline.Query, p *timeline.Page) []byte {
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
		dst = appendPostCursor(dst, p.Posts[len(p.Posts)-1])
	}
	return append(appendUnreadable(dst, p.Unreadable), '}')
}

// listGroups answers the names and sizes of a user's groups.
func listGroups(_ context.Context, s *Server, r *request, _ *nothing) (any, error) {
	groups, err := s.node().timelines.Groups(r.id, &r.read)
	list := []client.FolloweeGroup{}
	for _, g := range groups {
		list = append(list, client.FolloweeGroup{Name: g.Name, Followees: len(g.Followees)})
	}
	return map[string]any{"groups": list}, err
}

func (s *Server) getGroup(ctx *fasthttp.RequestCtx, r *request) error {
	group, err := s.node().timelines.Group(r.id, string(r.name), &r.read)
	if err != nil {
		return fmt.Errorf("cannot read group: %w", err)
	}
	answerLong(ctx, 32+16*len(group.Followees), func(dst []byte) []byte {
		return append(appendIDs(append(dst, `{"followees":`...), group.Followees), '}')
	})
	return nil
}

func (s *Server) putGroup(ctx *fasthttp.RequestCtx, r *request) error {
	if err := r.decodeFollowees(ctx.Request.Body()); err != nil {
		return err
	}
	size, err := s.node().timelines.PutGroup(r.id, string(r.name), r.ids, &r.write)
	if err != nil {
		return fmt.Errorf("cannot change group: %w", err)
	}
	answerWrite(ctx, &r.write, func(dst []byte) []byte { return appendNumber(dst, "followees", size) })
	return nil
}

// dropGroup answers that the group has no followees. Dropping a missing group is no error.
func dropGroup(_ context.Context, s *Server, r *request, _ *nothing) (client.GroupResult, error) {
	err := s.node().timelines.DropGroup(r.id, string(r.name), &r.write)
	return client.GroupResult{Written: r.written()}, err
}

// Compile-time check that a node serves timelines.
var _ timeline.Node = (*shard.Node)(nil)
