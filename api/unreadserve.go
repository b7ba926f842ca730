package api

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/valyala/fasthttp"

	"github.com/countd/countd/api/jsontext"
	"github.com/countd/countd/client"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/unread"
)

// resetUnread resets counts of a user. It answers with the remaining and the cleared ones.
func (s *Server) resetUnread(ctx *fasthttp.RequestCtx, r *request) error {
	if err := r.decodeReset(ctx.Request.Body()); err != nil {
		return err
	}
	if err := s.writeOps(r, true); err != nil {
		return err
	}
	w := &r.write
	cleared, after := w.Rows[:w.Width], w.Rows[w.Width:]
	if w.Repeated {
		clear(cleared) // this call cleared nothing
	}
	named := make([]uint8, 0, len(w.Ops[0].Cells))
	for _, cell := range w.Ops[0].Cells {
		named = append(named, cell.Column)
	}
	r.columns = r.columns[:0]
	r.allColumns()
	answer(ctx, func(dst []byte) []byte {
		dst = appendRow(dst, r.id, r.keyspace, r.columns, after)
		dst = append(dst, `,"cleared":`...)
		dst = appendColumns(dst, r.keyspace, named, cleared)
		return append(appendOutcome(dst, w), '}')
	})
	return nil
}

// answerWrite answers a write with its own members, which members appends after an opening
// brace, and those of every write.
func answerWrite(ctx *fasthttp.RequestCtx, w *shard.Write, members func(dst []byte) []byte) {
	answer(ctx, func(dst []byte) []byte { return append(appendOutcome(members(append(dst, '{')), w), '}') })
}

// numbered returns a write of everybody's notices or dots. It answers with the number that write
// returns, under a name.
func numbered(name string, write func(*unread.Numbers, *request) (int64, error)) handler {
	return func(s *Server, ctx *fasthttp.RequestCtx, r *request) error {
		if err := r.decodeNothing(ctx.Request.Body()); err != nil {
			return err
		}
		number, err := write(s.node().unread, r)
		if err != nil {
			return fmt.Errorf("cannot change notices or dots: %w", err)
		}
		answerWrite(ctx, &r.write, func(dst []byte) []byte { return jsontext.AppendNumber(dst, name, number) })
		return nil
	}
}

func publish(u *unread.Numbers, r *request) (int64, error) {
	return u.Publish(string(r.name), &r.write)
}

func retract(u *unread.Numbers, r *request) (int64, error) {
	seq := int64(r.id)
	if seq < 0 {
		return 0, invalid("seq", notCount)
	}
	return seq, u.Retract(string(r.name), seq, &r.write)
}

func fire(u *unread.Numbers, r *request) (int64, error) { return u.Fire(string(r.name), &r.write) }

func (s *Server) notices(ctx *fasthttp.RequestCtx, r *request) error {
	n, err := s.node().unread.Notices(string(r.name), r.id, r.asked.since, &r.read)
	if err != nil {
		return fmt.Errorf("cannot read notices: %w", err)
	}
	answer(ctx, func(dst []byte) []byte { return append(appendNotices(append(dst, '{'), n), '}') })
	return nil
}

// appendNotices appends "unread":n,"last_read":n,"latest":n.
func appendNotices(dst []byte, n unread.Notices) []byte {
	dst = jsontext.AppendNumber(dst, "unread", n.Unread)
	if n.Seen {
		dst = jsontext.AppendNumber(append(dst, ','), "last_read", n.LastRead)
	} else {
		dst = append(dst, `,"last_read":null`...)
	}
	return jsontext.AppendNumber(append(dst, ','), "latest", n.Latest)
}

func (s *Server) readNotices(ctx *fasthttp.RequestCtx, r *request) error {
	upTo, since, err := r.decodeUpTo(ctx.Request.Body())
	if err != nil {
		return err
	}
	var n unread.Notices
	if since != nil {
		n, err = s.node().unread.BeginNotices(string(r.name), r.id, *since, &r.write)
	} else {
		n, err = s.node().unread.ReadNotices(string(r.name), r.id, upTo, &r.write)
	}
	if err != nil {
		return fmt.Errorf("cannot read notices: %w", r.withOps(err))
	}
	answerWrite(ctx, &r.write, func(dst []byte) []byte { return appendNotices(dst, n) })
	return nil
}

func (s *Server) setDot(ctx *fasthttp.RequestCtx, r *request) error {
	newUsers, err := r.decodeFlag(ctx.Request.Body(), "new_users")
	if err != nil {
		return err
	}
	fired, err := s.node().unread.SetDot(string(r.name), newUsers, &r.write)
	if err != nil {
		return fmt.Errorf("cannot set dot: %w", err)
	}
	answerWrite(ctx, &r.write, func(dst []byte) []byte {
		return jsontext.AppendBool(append(jsontext.AppendNumber(dst, "fired", fired), ','), "new_users", newUsers)
	})
	return nil
}

func (s *Server) showDot(ctx *fasthttp.RequestCtx, r *request) error {
	shows, err := s.node().unread.Shows(string(r.name), r.id, &r.read)
	if err != nil {
		return fmt.Errorf("cannot read dot: %w", err)
	}
	answer(ctx, func(dst []byte) []byte { return append(jsontext.AppendBool(append(dst, '{'), "show", shows), '}') })
	return nil
}

func (s *Server) clearDot(ctx *fasthttp.RequestCtx, r *request) error {
	if err := r.decodeNothing(ctx.Request.Body()); err != nil {
		return err
	}
	shows, err := s.node().unread.ClearDot(string(r.name), r.id, &r.write)
	if err != nil {
		return fmt.Errorf("cannot clear dot: %w", r.withOps(err))
	}
	answerWrite(ctx, &r.write, func(dst []byte) []byte { return jsontext.AppendBool(dst, "show", shows) })
	return nil
}

func listChannels(_ context.Context, s *Server, r *request, _ *nothing) (any, error) {
	board, err := s.node().unread.Board(&r.read)
	if err != nil {
		return nil, err
	}
	list := []client.Channel{}
	for _, name := range slices.Sorted(maps.Keys(board.Channels)) {
		c := board.Channels[name]
		list = append(list, client.Channel{Name: name, Latest: c.Latest, Retracted: c.Latest - c.Unread(0)})
	}
	return map[string]any{"channels": list}, nil
}

func listDots(_ context.Context, s *Server, r *request, _ *nothing) (any, error) {
	board, err := s.node().unread.Board(&r.read)
	if err != nil {
		return nil, err
	}
	list := []client.Dot{}
	for _, name := range slices.Sorted(maps.Keys(board.Dots)) {
		d := board.Dots[name]
		list = append(list, client.Dot{Name: name, Fired: d.Fired, NewUsers: d.NewUsers})
	}
	return map[string]any{"dots": list}, nil
}
