package api

import (
	"errors"
	"log/slog"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/countd/countd/auth/audit"
)

// auditBytesMax bounds how much of a body or path a log line holds: orders are shorter.
const auditBytesMax = 256

// audit logs a call that changes the cluster or a keyspace, with the caller's address and
// the result. Refused calls changed nothing and may be many, so their lines are limited.
func (s *Server) audit(ctx *fasthttp.RequestCtx, r *request, e *endpoint, err error) {
	f, isFault := errors.AsType[*fault](err)
	if isFault && f.refusal {
		return // authorize has written that
	}
	event := audit.Event{
		Time: time.Now(), From: ctx.RemoteAddr().String(), What: e.name, Target: clipped(ctx.URI().PathOriginal()),
		Outcome: outcomeOf(err), Status: ctx.Response.StatusCode(),
	}
	if r.caller != nil {
		event.Who, event.Token = r.caller.Name, r.caller.Token
	}
	s.cfg.Audit.Action(event)
	logger, msg := s.cfg.Logger, "admin action"
	if err != nil {
		logger, msg = s.limited, "admin action failed: "+e.name // limited by name
	}
	args := []any{
		"action", e.name, "path", clipped(ctx.URI().PathOriginal()), "caller", ctx.RemoteAddr().String(), "user", event.Who,
		"status", ctx.Response.StatusCode(),
	}
	if ctx.RequestBodyStream() == nil && e.takes&takesSecret == 0 { // a stream was not read, as for a restore
		args = append(args, "body", clipped(ctx.Request.Body()))
	}
	if query := ctx.URI().QueryString(); len(query) > 0 {
		args = append(args, "query", clipped(query))
	}
	if err != nil {
		args = append(args, slog.String("err", clipped([]byte(err.Error()))))
	}
	logger.Info(msg, args...)
}

// outcomeOf returns the code of an error, or ok.
func outcomeOf(err error) string {
	if err == nil {
		return "ok"
	}
	f, _ := faultOf(err)
	return f.code
}

func clipped(text []byte) string {
	if len(text) > auditBytesMax {
		return string(text[:auditBytesMax]) + "…"
	}
	return string(text)
}
