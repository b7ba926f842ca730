package api

import (
	"errors"
	"log/slog"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/countd/countd/api/gate"
	clientadmin "github.com/countd/countd/client/admin"
)

// auditBytesMax bounds the bytes of a body or path in a log line. Requests of operators are
// shorter.
const auditBytesMax = 256

// audit adds a line to the audit log for a call that only an admin may make. If the call changes
// the cluster or a keyspace, audit also adds a line to the node's log. Failed calls may be many, so
// the rate of their lines in the node's log is limited.
func (s *Server) audit(ctx *fasthttp.RequestCtx, r *request, e *endpoint, err error) {
	f, isFault := errors.AsType[*fault](err)
	if isFault && f.refusal {
		return // authorize has logged it
	}
	path := s.pathOf(ctx)
	event := clientadmin.AuditEvent{
		Time: time.Now(), From: ctx.RemoteAddr().String(), What: e.name, Target: path,
		Outcome: outcomeOf(err), Status: ctx.Response.StatusCode(),
	}
	if r.caller != nil {
		event.Who, event.Token = r.caller.Name, r.caller.Token
	}
	s.cfg.Audit.Action(event)
	if e.takes&audited == 0 {
		return
	}
	logger, msg := s.cfg.Logger, "admin action"
	if err != nil {
		logger, msg = s.limited, "admin action failed: "+e.name // name the call, because the rate limit is per text
	}
	args := []any{
		"action", e.name, "path", path, "caller", ctx.RemoteAddr().String(), "user", event.Who,
		"status", ctx.Response.StatusCode(),
	}
	if ctx.RequestBodyStream() == nil && e.takes&takesSecret == 0 { // a streamed body was not read
		args = append(args, "body", s.clipped(ctx.Request.Body()))
	}
	if query := ctx.URI().QueryString(); len(query) > 0 {
		args = append(args, "query", s.clipped(query))
	}
	if err != nil {
		args = append(args, slog.String("err", s.clipped([]byte(err.Error()))))
	}
	logger.Info(msg, args...)
}

// outcomeOf returns the code of an error, or "ok" for nil.
func outcomeOf(err error) string {
	if err == nil {
		return "ok"
	}
	f, _ := faultOf(err)
	return f.code
}

// pathOf returns the path of a request for a log.
func (s *Server) pathOf(ctx *fasthttp.RequestCtx) string {
	path := ctx.URI().PathOriginal()
	if plain, ok := gate.Unescaped(path); ok {
		path = plain
	}
	return s.clipped(path)
}

// clipped returns the beginning of a client's text for a log, without tokens.
func (s *Server) clipped(text []byte) string {
	masked := s.cfg.Auth.Mask(string(text[:min(len(text), 2*auditBytesMax)]))
	if len(masked) > auditBytesMax {
		return masked[:auditBytesMax] + "…"
	}
	return masked
}
