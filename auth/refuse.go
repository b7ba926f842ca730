package auth

import (
	"net"
	"time"

	clientadmin "github.com/countd/countd/client/admin"
)

// Call describes a refused call for the logs.
type Call struct {
	Caller *Caller // nil for a caller without a valid token
	From   net.Addr
	What   string // name of the endpoint or command
	Target string // keyspace or path
}

// Refuse counts and logs a call that the caller may not make. It reports whether to refuse the
// call: mode Permissive serves it.
func (a *Authorizer) Refuse(why Refusal, c Call) bool {
	counters := &a.metrics.permitted
	if a.Enforces() {
		counters = &a.metrics.refused
	}
	counters[why].Inc()
	c.Target = a.Mask(c.Target)
	e := clientadmin.AuditEvent{Time: time.Now(), From: c.From.String(), What: c.What, Target: c.Target, Outcome: why.String(), Served: !a.Enforces()}
	if c.Caller != nil {
		e.Who, e.Token = c.Caller.Name, c.Caller.Token
	}
	a.cfg.Audit.Refused(e)
	if !a.Enforces() {
		a.limited.Warn("--auth enforce would refuse a call: "+why.String(), "call", c.What, "target", c.Target, "user", e.Who, "from", e.From)
	}
	return a.Enforces()
}
