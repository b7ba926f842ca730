package api

import (
	"context"
	"errors"
	"fmt"

	"github.com/valyala/fasthttp"

	"github.com/countd/countd/auth/audit"
)

// auditDefault is the number of lines of the audit log that a call gets unless it asks for
// more.
const auditDefault = 100

// adminAudit answers the last lines of this node's audit log.
func adminAudit(_ context.Context, s *Server, r *request, _ *nothing) (any, error) {
	limit := auditDefault
	if r.asked.limit > 0 {
		limit = r.asked.limit
	}
	switch {
	case r.asked.hasAfter:
		return nil, invalid("cursor", "no such parameter of the query")
	case limit > audit.TailMax:
		return nil, invalid("limit", fmt.Sprintf("not an integer from 1 to %d", audit.TailMax))
	}
	events, err := s.cfg.Audit.Tail(limit)
	if errors.Is(err, audit.ErrNone) {
		return nil, &fault{status: fasthttp.StatusConflict, code: codeRefused, message: audit.ErrNone.Error()}
	}
	return map[string]any{"events": events}, err
}
