package api

import (
	"fmt"
	"strconv"

	"github.com/valyala/fasthttp"

	"github.com/countd/countd/shard"
	"github.com/countd/countd/unread"
)

func (s *Server) feedUnread(ctx *fasthttp.RequestCtx, r *request) error {
	f, err := s.node().unread.Feed(r.id, &r.read)
	if err != nil {
		return fmt.Errorf("cannot read feed: %w", err)
	}
	const followeeBytes = 24 // an id of ten digits and a small count
	shown := 0
	if r.asked.detail {
		shown = len(f.Detail)
	}
	answerLong(ctx, 32+followeeBytes*shown, func(dst []byte) []byte {
		dst = appendNumber(append(dst, '{'), "unread", f.Unread)
		if r.asked.detail {
			dst = appendDetail(append(dst, ','), f.Detail)
		}
		return append(dst, '}')
	})
	return nil
}

// appendDetail appends "followees":{"id":unread,…}.
func appendDetail(dst []byte, detail []unread.FolloweeUnread) []byte {
	dst = append(dst, `"followees":{`...)
	for i, f := range detail {
		dst = appendID(comma(dst, i), f.ID)
		dst = append(dst, ':')
		dst = strconv.AppendInt(dst, f.Unread, 10)
	}
	return append(dst, '}')
}

// followees answers a page of the users that a user follows.
func (s *Server) followees(ctx *fasthttp.RequestCtx, r *request) error {
	limit := r.asked.limit
	if limit == 0 {
		limit = followeesPageDefault
	}
	page, more, err := s.node().unread.Followees(r.id, r.asked.after, r.asked.hasAfter, limit, &r.read)
	if err != nil {
		return fmt.Errorf("cannot read feed: %w", err)
	}
	answerLong(ctx, 32+16*len(page), func(dst []byte) []byte {
		dst = appendIDs(append(dst, `{"followees":`...), page)
		if more {
			dst = appendID(append(dst, `,"cursor":`...), page[len(page)-1])
		}
		return append(dst, '}')
	})
	return nil
}

func (s *Server) resetFeed(ctx *fasthttp.RequestCtx, r *request) error {
	told, upTo, err := r.decodeFeedReset(ctx.Request.Body())
	if err != nil {
		return err
	}
	authors := []uint64(nil)
	if told {
		authors = append([]uint64{}, r.ids...)
	}
	f, err := s.node().unread.ResetFeed(r.id, authors, upTo, &r.write)
	return s.answerFeed(ctx, r, f, err)
}

func (s *Server) follow(ctx *fasthttp.RequestCtx, r *request) error {
	return s.changeFeed(ctx, r, (*unread.Numbers).Follow)
}

func (s *Server) unfollow(ctx *fasthttp.RequestCtx, r *request) error {
	return s.changeFeed(ctx, r, (*unread.Numbers).Unfollow)
}

func (s *Server) readFeed(ctx *fasthttp.RequestCtx, r *request) error {
	return s.changeFeed(ctx, r, (*unread.Numbers).ReadFeed)
}

func (s *Server) changeFeed(ctx *fasthttp.RequestCtx, r *request,
	change func(*unread.Numbers, uint64, []uint64, *shard.Write) (unread.Feed, error)) error {
	if err := r.decodeFollowees(ctx.Request.Body()); err != nil {
		return err
	}
	f, err := change(s.node().unread, r.id, r.ids, &r.write)
	return s.answerFeed(ctx, r, f, err)
}

func (s *Server) answerFeed(ctx *fasthttp.RequestCtx, r *request, f unread.Feed, err error) error {
	if err != nil {
		return fmt.Errorf("cannot change feed: %w", err)
	}
	answerWrite(ctx, &r.write, func(dst []byte) []byte { return appendNumber(dst, "unread", f.Unread) })
	return nil
}

// poll answers the whole poll of one user.
func (s *Server) poll(ctx *fasthttp.RequestCtx, r *request) error {
	p := &r.poll
	p.Users = append(p.Users[:0], r.id)
	if err := s.node().unread.Poll(p, &r.read); err != nil {
		return fmt.Errorf("cannot poll: %w", err)
	}
	answer(ctx, func(dst []byte) []byte { return append(appendPoll(append(dst, '{'), p, 0), '}') })
	return nil
}

// polls answers the poll of several users.
func (s *Server) polls(ctx *fasthttp.RequestCtx, r *request) error {
	p := &r.poll
	if err := r.decodePoll(ctx.Request.Body()); err != nil {
		return err
	}
	if err := s.node().unread.Poll(p, &r.read); err != nil {
		return fmt.Errorf("cannot poll: %w", err)
	}
	userBytes := 96 + 16*(len(p.Columns)+len(p.Channels)+len(p.Dots))
	answerLong(ctx, userBytes*len(p.Users), func(dst []byte) []byte {
		dst = append(dst, `{"results":[`...)
		for i, user := range p.Users {
			dst = appendID(append(comma(dst, i), `{"user":`...), user)
			dst = append(appendPoll(append(dst, ','), p, i), '}')
		}
		return append(dst, `]}`...)
	})
	return nil
}

// appendPoll appends the JSON fields of the poll of user i. Names need no escaping.
func appendPoll(dst []byte, p *unread.Poll, i int) []byte {
	dst = append(dst, `"unread":{`...)
	for c, name := range p.Columns {
		dst = appendNumber(comma(dst, c), name, p.Counts[i*len(p.Columns)+c])
	}
	dst = append(dst, `},"notices":{`...)
	for c, name := range p.Channels {
		dst = appendNumber(comma(dst, c), name, p.Notices[i*len(p.Channels)+c])
	}
	dst = append(dst, `},"dots":{`...)
	for d, name := range p.Dots {
		dst = appendBool(comma(dst, d), name, p.Shown[i*len(p.Dots)+d])
	}
	return appendNumber(append(dst, `},`...), "feed", p.Feeds[i])
}
