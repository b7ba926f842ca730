package api

import (
	"log/slog"

	"github.com/valyala/fasthttp"
)

// auditBytesMax bounds what a line of the log has of a body or path: orders are shorter.
const auditBytesMax = 256

// audit logs a call that changes the cluster or a keyspace, with the address of the
// caller and what was answered. Calls that were refused changed nothing, and anybody can
// send many, so their lines are limited.
func (s *Server) audit(ctx *fasthttp.RequestCtx, e *endpoint, err error) {
	logger, msg := s.cfg.Logger, "admin action"
	if err != nil {
		logger, msg = s.limited, "admin action failed: "+e.name // each has a limit of its own
	}
	args := []any{
		"action", e.name, "path", clipped(ctx.URI().PathOriginal()), "caller", ctx.RemoteAddr().String(),
		"status", ctx.Response.StatusCode(),
	}
	if ctx.RequestBodyStream() == nil { // else it was not read, as that of a restore
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

func clipped(text []byte) string {
	if len(text) > auditBytesMax {
		return string(text[:auditBytesMax]) + "…"
	}
	return string(text)
}
