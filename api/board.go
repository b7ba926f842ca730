package api

import (
	"context"
	"errors"
	"math"

	"github.com/countd/countd/api/operate"
	"github.com/countd/countd/auth"
	"github.com/countd/countd/client"
	"github.com/countd/countd/inbox"
	"github.com/countd/countd/internal/strictjson"
	"github.com/countd/countd/raftfsm/kinds"
)

// boardRoutes are the calls about notices and dots.
func boardRoutes() []route {
	const write = takesWrite | takesBody
	reads, writes := auth.Read.On(kinds.KeyspaceUnread), auth.Write.On(kinds.KeyspaceUnread)
	return []route{
		{"GET /v1/notices", "notices_list", does{takesRead | takesUnread, reads, rare(listChannels)}},
		{"POST /v1/notices/{channel}", "notices_publish", does{write | takesUnread | takesName, writes, rare(publish)}},
		{"DELETE /v1/notices/{channel}/{seq}", "notices_retract", does{takesWrite | takesUnread | takesName | takesNotice, writes, rare(retract)}},
		{"GET /v1/notices/{channel}/users/{user}", "notices_get", does{takesRead | takesUser | takesName | takesSince, reads, rare(notices)}},
		{"POST /v1/notices/{channel}/users/{user}/read", "notices_read", does{write | takesUser | takesName, writes, rare(readNotices)}},
		{"GET /v1/dots", "dots_list", does{takesRead | takesUnread, reads, rare(listDots)}},
		{"PUT /v1/dots/{name}", "dots_set", does{write | takesUnread | takesName, writes, rare(setDot, "new_users")}},
		{"POST /v1/dots/{name}/fire", "dots_fire", does{write | takesUnread | takesName, writes, rare(fire)}},
		{"GET /v1/dots/{name}/users/{user}", "dots_get", does{takesRead | takesUser | takesName, reads, rare(showDot)}},
		{"POST /v1/dots/{name}/users/{user}/clear", "dots_clear", does{write | takesUser | takesName, writes, rare(clearDot)}},
	}
}

func publish(_ context.Context, s *Server, r *request, _ *operate.Nothing) (client.Published, error) {
	seq, err := s.node().unread.Publish(string(r.name), &r.write)
	return client.Published{Seq: seq, Written: r.written()}, err
}

func retract(_ context.Context, s *Server, r *request, _ *operate.Nothing) (client.Published, error) {
	seq := int64(r.id)
	if seq < 0 {
		return client.Published{}, invalid("seq", notCount)
	}
	err := s.node().unread.Retract(string(r.name), seq, &r.write)
	return client.Published{Seq: seq, Written: r.written()}, err
}

func notices(_ context.Context, s *Server, r *request, _ *operate.Nothing) (client.Notices, error) {
	n, err := s.node().unread.Notices(string(r.name), r.id, r.asked.since, &r.read)
	return showNotices(n), err
}

func showNotices(n inbox.Notices) client.Notices {
	shown := client.Notices{Unread: n.Unread, Latest: n.Latest}
	if n.Seen {
		shown.LastRead = &n.LastRead
	}
	return shown
}

// noticeSeq is the number of a notice. 0 means that the user has read no notice.
type noticeSeq int64

// Problem implements operate.Typed.
func (noticeSeq) Problem() string { return notCount }

func (n *noticeSeq) UnmarshalJSON(text []byte) error {
	seq, ok := strictjson.ParseUint64(text)
	if !ok || seq > math.MaxInt64 {
		return errors.New(notCount)
	}
	*n = noticeSeq(seq)
	return nil
}

// readNotices moves a user's cursor to the notice up_to or, without up_to, to the latest notice.
func readNotices(_ context.Context, s *Server, r *request, body *struct {
	UpTo  *noticeSeq `json:"up_to"`
	Since *noticeSeq `json:"since"`
}) (client.NoticesRead, error) {
	n, err := s.node().unread.ReadNotices(string(r.name), r.id, (*int64)(body.UpTo), (*int64)(body.Since), &r.write)
	return client.NoticesRead{Notices: showNotices(n), Written: r.written()}, err
}

func fire(_ context.Context, s *Server, r *request, _ *operate.Nothing) (client.Fired, error) {
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

func showDot(_ context.Context, s *Server, r *request, _ *operate.Nothing) (any, error) {
	shows, err := s.node().unread.Shows(string(r.name), r.id, &r.read)
	return map[string]any{"show": shows}, err
}

func clearDot(_ context.Context, s *Server, r *request, _ *operate.Nothing) (client.Shown, error) {
	shows, err := s.node().unread.ClearDot(string(r.name), r.id, &r.write)
	return client.Shown{Show: shows, Written: r.written()}, err
}

func listChannels(_ context.Context, s *Server, r *request, _ *operate.Nothing) (any, error) {
	channels, err := s.node().unread.Channels(&r.read)
	list := []client.Channel{}
	for _, c := range channels {
		list = append(list, client.Channel(c))
	}
	return map[string]any{"channels": list}, err
}

func listDots(_ context.Context, s *Server, r *request, _ *operate.Nothing) (any, error) {
	dots, err := s.node().unread.Dots(&r.read)
	list := []client.Dot{}
	for _, d := range dots {
		list = append(list, client.Dot(d))
	}
	return map[string]any{"dots": list}, err
}
