package api

import (
	"cmp"
	"context"
	"fmt"
	"strconv"

	"github.com/valyala/fasthttp"

	"github.com/countd/countd/api/operate"
	"github.com/countd/countd/auth"
	"github.com/countd/countd/client"
	"github.com/countd/countd/inbox"
	"github.com/countd/countd/internal/strictjson"
	"github.com/countd/countd/names"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/shard"
)

// feedRoutes are the calls about followees and their groups.
func feedRoutes() []route {
	const (
		write = takesWrite | takesBody
		group = takesUser | takesGroup
	)
	reads, writes := auth.Read.On(kinds.KeyspaceFeed), auth.Write.On(kinds.KeyspaceFeed)
	return []route{
		{"POST /v1/feed/{user}/reset", "feed_reset", does{write | takesUser, writes, resetFeed}},
		{"POST /v1/feed/{user}/follow", "feed_follow", does{write | takesUser, writes, follow}},
		{"POST /v1/feed/{user}/unfollow", "feed_unfollow", does{write | takesUser | removes, writes, unfollow}},
		{"POST /v1/feed/{user}/read", "feed_read", does{write | takesUser | removes, writes, readFeed}},
		{"GET /v1/feed/{user}/unread", "feed_unread", does{takesRead | takesUser | takesDetail, reads, feedUnread}},
		{"GET /v1/feed/{user}/followees", "feed_followees", does{takesRead | takesUser | takesCursor, reads, followees}},
		{"GET /v1/feed/{user}/groups", "feed_groups", does{takesRead | takesUser, reads, rare(listGroups)}},
		{"GET /v1/feed/{user}/groups/{name}", "feed_group_get", does{takesRead | group, reads, getGroup}},
		{"PUT /v1/feed/{user}/groups/{name}", "feed_group_put", does{takesWrite | takesBody | group, writes, putGroup}},
		{"DELETE /v1/feed/{user}/groups/{name}", "feed_group_delete", does{takesWrite | group | removes, writes, rare(dropGroup)}},
	}
}

// The bounds of a page of followees.
const (
	followeesPageDefault = 1_000
	followeesPageMax     = inbox.FolloweesMax
)

func feedUnread(s *Server, ctx *fasthttp.RequestCtx, r *request) error {
	if err := named(&r.texts); err != nil {
		return err
	}
	f, err := s.node().unread.Feed(r.id, &r.read)
	if err != nil {
		return fmt.Errorf("cannot read feed: %w", err)
	}
	const followeeBytes = 24 // an id of ten digits and a small count
	if !r.asked.detail {
		f.Detail = nil
	}
	texts, err := r.texts.Shown(namesOf(r.keyspace), len(f.Detail), func(i int) uint64 { return f.Detail[i].ID }, &r.read)
	if err != nil {
		return err
	}
	answerLong(ctx, 32+followeeBytes*len(f.Detail), func(dst []byte) []byte {
		dst = appendNumber(append(dst, '{'), "unread", f.Unread)
		if r.asked.detail {
			dst = appendDetail(append(dst, ','), f.Detail, texts)
		}
		return append(dst, '}')
	})
	return nil
}

// appendDetail appends "followees":{"id":unread,…}, without followees whose name was erased, because
// they would have the same key. texts is a result of Slots.Shown.
func appendDetail(dst []byte, detail []inbox.FolloweeUnread, texts names.Shown) []byte {
	dst = append(dst, `"followees":{`...)
	n := 0
	for i, f := range detail {
		if texts != nil && texts[i] == "" {
			continue
		}
		dst = append(texts.AppendJSON(comma(dst, n), i, f.ID), ':')
		dst = strconv.AppendInt(dst, f.Unread, 10)
		n++
	}
	return append(dst, '}')
}

// followees answers a page of the users that a user follows.
func followees(s *Server, ctx *fasthttp.RequestCtx, r *request) error {
	if err := named(&r.texts); err != nil {
		return err
	}
	limit := cmp.Or(r.asked.limit, followeesPageDefault)
	page, more, err := s.node().unread.Followees(r.id, r.asked.after, r.asked.hasAfter, limit, &r.read)
	if err != nil {
		return fmt.Errorf("cannot read feed: %w", err)
	}
	texts, err := rowTexts(r, page)
	if err != nil {
		return err
	}
	answerLong(ctx, 32+16*len(page), func(dst []byte) []byte {
		dst = appendIDs(append(dst, `{"followees":`...), page, texts)
		if more {
			dst = strictjson.AppendID(append(dst, `,"cursor":`...), page[len(page)-1])
		}
		return append(dst, '}')
	})
	return nil
}

func resetFeed(s *Server, ctx *fasthttp.RequestCtx, r *request) error {
	told, upTo, err := r.decodeFeedReset(ctx.Request.Body())
	if err := cmp.Or(err, named(&r.texts)); err != nil {
		return err
	}
	authors := []uint64(nil)
	if told {
		authors = append([]uint64{}, r.ids...)
	}
	f, err := s.node().unread.ResetFeed(r.id, authors, upTo, &r.write)
	return s.answerFeed(ctx, r, f, err)
}

func follow(s *Server, ctx *fasthttp.RequestCtx, r *request) error {
	return s.changeFeed(ctx, r, (*inbox.Numbers).Follow)
}

func unfollow(s *Server, ctx *fasthttp.RequestCtx, r *request) error {
	return s.changeFeed(ctx, r, (*inbox.Numbers).Unfollow)
}

func readFeed(s *Server, ctx *fasthttp.RequestCtx, r *request) error {
	return s.changeFeed(ctx, r, (*inbox.Numbers).ReadFeed)
}

func (s *Server) changeFeed(ctx *fasthttp.RequestCtx, r *request,
	change func(*inbox.Numbers, uint64, []uint64, *shard.Write) (inbox.Feed, error)) error {
	if err := cmp.Or(r.decodeFollowees(ctx.Request.Body()), named(&r.texts)); err != nil {
		return err
	}
	f, err := change(s.node().unread, r.id, r.ids, &r.write)
	return s.answerFeed(ctx, r, f, err)
}

func (s *Server) answerFeed(ctx *fasthttp.RequestCtx, r *request, f inbox.Feed, err error) error {
	if err != nil {
		return fmt.Errorf("cannot change feed: %w", err)
	}
	answerWrite(ctx, &r.write, func(dst []byte) []byte { return appendNumber(dst, "unread", f.Unread) })
	return nil
}

// decodeFollowees parses {"followees":[…]} into r.ids.
func (r *request) decodeFollowees(body []byte) error {
	return r.allMembers(body, []string{"followees"}, func(*cursor, int) { r.decodeIDs("followees", namesOf(r.keyspace), 0, inbox.FolloweesMax) })
}

// decodeFeedReset parses {"followees":[…]?,"up_to":id?} into r.ids and upTo, which is nil if
// missing. hasFollowees reports whether the body has followees.
func (r *request) decodeFeedReset(body []byte) (hasFollowees bool, upTo *uint64, err error) {
	s, err := r.members(optional(body), []string{"followees", "up_to"}, func(c *cursor, member int) {
		if member == 0 {
			r.decodeIDs("followees", namesOf(r.keyspace), 0, inbox.FolloweesMax)
			return
		}
		r.texts.Seeks = true
		id, problem := r.texts.Read(&r.cursor.Cursor, postNames(r), names.NoSlot)
		if r.texts.Seeks, upTo = false, &id; problem == "" && r.texts.Absent {
			problem = "no such post" // the number of a new name would mark all posts as seen
		}
		if problem != "" {
			c.Fail("up_to", problem)
		}
	})
	return s.has(0), upTo, err
}

// listGroups answers the names and sizes of a user's groups.
func listGroups(_ context.Context, s *Server, r *request, _ *operate.Nothing) (any, error) {
	groups, err := s.node().timelines.Groups(r.id, &r.read)
	list := []client.FolloweeGroup{}
	for _, g := range groups {
		list = append(list, client.FolloweeGroup{Name: g.Name, Followees: len(g.Followees)})
	}
	return map[string]any{"groups": list}, err
}

func getGroup(s *Server, ctx *fasthttp.RequestCtx, r *request) error {
	if err := named(&r.texts); err != nil {
		return err
	}
	group, err := s.node().timelines.Group(r.id, string(r.name), &r.read)
	if err != nil {
		return fmt.Errorf("cannot read group: %w", err)
	}
	texts, err := rowTexts(r, group.Followees)
	if err != nil {
		return err
	}
	answerLong(ctx, 32+16*len(group.Followees), func(dst []byte) []byte {
		return append(appendIDs(append(dst, `{"followees":`...), group.Followees, texts), '}')
	})
	return nil
}

func putGroup(s *Server, ctx *fasthttp.RequestCtx, r *request) error {
	if err := cmp.Or(r.decodeFollowees(ctx.Request.Body()), named(&r.texts)); err != nil {
		return err
	}
	size, err := s.node().timelines.PutGroup(r.id, string(r.name), r.ids, &r.write)
	if err != nil {
		return fmt.Errorf("cannot change group: %w", err)
	}
	answerWrite(ctx, &r.write, func(dst []byte) []byte { return appendNumber(dst, "followees", size) })
	return nil
}

// dropGroup deletes a group, if it exists, and answers that the group has no followees.
func dropGroup(_ context.Context, s *Server, r *request, _ *operate.Nothing) (client.GroupResult, error) {
	err := s.node().timelines.DropGroup(r.id, string(r.name), &r.write)
	return client.GroupResult{Written: r.written()}, err
}
