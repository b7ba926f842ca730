package api

import (
	"context"
	"maps"
	"slices"

	"github.com/valyala/fasthttp"

	"github.com/countd/countd/client"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/unread"
)

// resetUnread resets counts of a user. It answers the remaining and the cleared counts.
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

// answerWrite answers a write with its own members and those of every write. members appends the
// former after an opening brace.
func answerWrite(ctx *fasthttp.RequestCtx, w *shard.Write, members func(dst []byte) []byte) {
	answer(ctx, func(dst []byte) []byte { return append(appendOutcome(members(append(dst, '{')), w), '}') })
}

// written returns the members that the answer of every write has.
func (r *request) written() client.Written {
	return client.Written{Duplicate: r.write.Duplicate, Token: string(r.write.Token.AppendText(nil))}
}

func publish(_ context.Context, s *Server, r *request, _ *nothing) (client.Published, error) {
	seq, err := s.node().unread.Publish(string(r.name), &r.write)
	return client.Published{Seq: seq, Written: r.written()}, err
}

func retract(_ context.Context, s *Server, r *request, _ *nothing) (client.Published, error) {
	seq := int64(r.id)
	if seq < 0 {
		return client.Published{}, invalid("seq", notCount)
	}
	err := s.node().unread.Retract(string(r.name), seq, &r.write)
	return client.Published{Seq: seq, Written: r.written()}, err
}

func notices(_ context.Context, s *Server, r *request, _ *nothing) (client.Notices, error) {
	n, err := s.node().unread.Notices(string(r.name), r.id, r.asked.since, &r.read)
	return showNotices(n), err
}

func showNotices(n unread.Notices) client.Notices {
	shown := client.Notices{Unread: n.Unread, Latest: n.Latest}
	if n.Seen {
		shown.LastRead = &n.LastRead
	}
	return shown
}

// noticeSeq is the number of a notice, or of the latest one that a user has read.
type noticeSeq int64

// readNotices moves a user's cursor to a notice, or to the latest notice if the body names none.
func readNotices(_ context.Context, s *Server, r *request, body *struct {
	UpTo  *noticeSeq `json:"up_to"`
	Since *noticeSeq `json:"since"`
}) (client.NoticesRead, error) {
	var n unread.Notices
	var err error
	switch {
	case body.UpTo != nil && body.Since != nil:
		err = invalid("since", "a read goes up to a notice or begins behind one, not both")
	case body.UpTo != nil && *body.UpTo < 0:
		err = invalid("up_to", notCount)
	case body.Since != nil && *body.Since < 0:
		err = invalid("since", notCount)
	case body.Since != nil:
		n, err = s.node().unread.BeginNotices(string(r.name), r.id, int64(*body.Since), &r.write)
	default:
		n, err = s.node().unread.ReadNotices(string(r.name), r.id, (*int64)(body.UpTo), &r.write)
	}
	return client.NoticesRead{Notices: showNotices(n), Written: r.written()}, err
}

func fire(_ context.Context, s *Server, r *request, _ *nothing) (client.Fired, error) {
	fired, err := s.node().unread.Fire(string(r.name), &r.write)
	return client.Fired{Fired: fired, Written: r.written()}, err
}

func setDot(_ context.Context, s *Server, r *request, body *struct {
	NewUsers bool `json:"new_users"`
}) (any, error) {
	fired, err := s.node().unread.SetDot(string(r.name), body.NewUsers, &r.write)
	return struct {
		Fired    int64 `json:"fired"`
		NewUsers bool  `json:"new_users"`
		client.Written
	}{fired, body.NewUsers, r.written()}, err
}

func showDot(_ context.Context, s *Server, r *request, _ *nothing) (any, error) {
	shows, err := s.node().unread.Shows(string(r.name), r.id, &r.read)
	return map[string]any{"show": shows}, err
}

func clearDot(_ context.Context, s *Server, r *request, _ *nothing) (client.Shown, error) {
	shows, err := s.node().unread.ClearDot(string(r.name), r.id, &r.write)
	return client.Shown{Show: shows, Written: r.written()}, err
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
