package api

import (
	"fmt"
	"maps"
	"slices"

	"github.com/valyala/fasthttp"

	"github.com/countd/countd/api/jsontext"
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

func (s *Server) publish(ctx *fasthttp.RequestCtx, r *request) error {
	if err := r.decodeNothing(ctx.Request.Body()); err != nil {
		return err
	}
	seq, err := s.node().unread.Publish(string(r.name), &r.write)
	if err != nil {
		return fmt.Errorf("cannot publish: %w", err)
	}
	answerWrite(ctx, &r.write, func(dst []byte) []byte { return jsontext.AppendNumber(dst, "seq", seq) })
	return nil
}

func (s *Server) retract(ctx *fasthttp.RequestCtx, r *request) error {
	seq := int64(r.id)
	if seq < 0 {
		return invalid("seq", notCount)
	}
	if err := s.node().unread.Retract(string(r.name), seq, &r.write); err != nil {
		return fmt.Errorf("cannot retract: %w", err)
	}
	answerWrite(ctx, &r.write, func(dst []byte) []byte { return jsontext.AppendNumber(dst, "seq", seq) })
	return nil
}

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

func (s *Server) fire(ctx *fasthttp.RequestCtx, r *request) error {
	if err := r.decodeNothing(ctx.Request.Body()); err != nil {
		return err
	}
	fired, err := s.node().unread.Fire(string(r.name), &r.write)
	if err != nil {
		return fmt.Errorf("cannot fire: %w", err)
	}
	answerWrite(ctx, &r.write, func(dst []byte) []byte { return jsontext.AppendNumber(dst, "fired", fired) })
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

func (s *Server) listChannels(ctx *fasthttp.RequestCtx, r *request) error {
	board, err := s.node().unread.Board(&r.read)
	if err != nil {
		return fmt.Errorf("cannot list channels: %w", err)
	}
	type channel struct {
		Name      string `json:"name"`
		Latest    int64  `json:"latest"`
		Retracted int64  `json:"retracted"`
	}
	list := make([]channel, 0, len(board.Channels))
	for _, name := range slices.Sorted(maps.Keys(board.Channels)) {
		c := board.Channels[name]
		list = append(list, channel{name, c.Latest, c.Latest - c.Unread(0)})
	}
	return answerJSON(ctx, map[string]any{"channels": list})
}

func (s *Server) listDots(ctx *fasthttp.RequestCtx, r *request) error {
	board, err := s.node().unread.Board(&r.read)
	if err != nil {
		return fmt.Errorf("cannot list dots: %w", err)
	}
	type dot struct {
		Name     string `json:"name"`
		Fired    int64  `json:"fired"`
		NewUsers bool   `json:"new_users"`
	}
	list := make([]dot, 0, len(board.Dots))
	for _, name := range slices.Sorted(maps.Keys(board.Dots)) {
		d := board.Dots[name]
		list = append(list, dot{name, d.Fired, d.NewUsers})
	}
	return answerJSON(ctx, map[string]any{"dots": list})
}
