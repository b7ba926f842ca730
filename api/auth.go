package api

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/countd/countd/api/gate"
	"github.com/countd/countd/api/operate"
	"github.com/countd/countd/auth"
	"github.com/countd/countd/internal/strictjson"
)

// authFaults has the answers to refused callers. They are encoded in advance, because refusals may
// come in bursts and must cost little.
var authFaults = map[auth.Refusal]*fault{
	auth.NoToken:  unauthenticated("a token is needed: Authorization: Bearer TOKEN"),
	auth.BadToken: unauthenticated("the token is nobody's; it may have been revoked"),
	auth.Expired:  unauthenticated("the token has expired"),
	auth.Unproven: encoded(&fault{
		status:  fasthttp.StatusServiceUnavailable,
		code:    codeNoLeader,
		message: "this node cannot prove that the users that it knows are current",
	}),
}

// errAuthTwice answers a request with several tokens. It counts as a refusal, so that such
// requests cannot flood the audit log.
var errAuthTwice = encoded(invalid(headerAuthorization, strictjson.GivenTwice))

func unauthenticated(message string) *fault {
	return encoded(&fault{status: fasthttp.StatusUnauthorized, code: codeUnauthenticated, message: message})
}

func encoded(f *fault) *fault {
	f.text, f.refusal = f.appendJSON(nil), true
	return f
}

// identity is the caller of a request, and what is needed to check the caller's rights.
type identity struct {
	auth     *auth.Authorizer // nil if authorization is off, or the endpoint is public
	caller   *auth.Caller     // nil for a caller without a token
	excused  bool             // the call lacks a right, but the mode permissive allows it
	from     *fasthttp.RequestCtx
	endpoint *endpoint
	received time.Time // time of the request's last byte
}

// authorize identifies the caller of a request. It returns an error if the caller may not make the
// call. e is routes.none if the path has no endpoint.
func (s *Server) authorize(ctx *fasthttp.RequestCtx, r *request, e *endpoint, to target) error {
	a := s.cfg.Auth
	if a == nil || e.need.Access == auth.Public {
		return nil
	}
	r.auth, r.from, r.endpoint = a, ctx, e
	token, twice := bearer(&ctx.Request.Header)
	caller, why := a.Identify(token, r.received)
	r.caller = caller
	if why == auth.NoToken && !twice && e.takes&takesNobody != 0 {
		return nil
	}
	if why != auth.Granted {
		if r.refuse(why, "") {
			if twice {
				return errAuthTwice
			}
			return authFaults[why]
		}
		r.excused = true
		return nil
	}
	if err := s.checkLimits(ctx, r, e); err != nil {
		return err
	}
	if e == s.routes.none || caller.Allows(&e.need, to.keyspace) {
		return nil
	}
	return r.forbidden(e.need.Access, to.keyspace, e.need.Keyspaces)
}

// reauthorize refuses a call if its token was revoked while its body arrived.
func (r *identity) reauthorize(e *endpoint, to target) error {
	if r.caller == nil || r.excused {
		return nil
	}
	caller, why := r.auth.Still(r.caller, r.received)
	switch {
	case why != auth.Granted && r.refuse(why, ""):
		return authFaults[why]
	case why != auth.Granted:
		r.excused = true
		return nil
	}
	r.caller = caller
	if caller.Allows(&e.need, to.keyspace) {
		return nil
	}
	return r.forbidden(e.need.Access, to.keyspace, e.need.Keyspaces)
}

// Still implements shard.Permission. It refuses a call whose caller has lost the token or the
// right since the call was allowed.
func (r *identity) Still() error {
	if r.caller == nil || r.excused {
		return nil
	}
	switch why := r.auth.Keeps(r.caller, time.Now()); {
	case why == auth.Granted:
		return nil
	case why == auth.Forbidden:
		return r.forbidden(auth.Known, nil, nil)
	case r.refuse(why, ""):
		return authFaults[why]
	}
	r.excused = true
	return nil
}

// bearer returns the token of a request, or nil if there is none. It accepts no request with
// several tokens, because a proxy and the server might choose different ones.
func bearer(h *fasthttp.RequestHeader) (token []byte, twice bool) {
	text, err := gate.Header(h, headerAuthorization)
	if err != nil || len(text) == 0 {
		return nil, err != nil
	}
	scheme, token, _ := bytes.Cut(text, []byte(" "))
	if !bytes.EqualFold(scheme, []byte("Bearer")) {
		return nil, false
	}
	return bytes.TrimSpace(token), false
}

// checkLimits counts a call against the limits of its caller. A write counts as one op; countOps
// counts the other ops of a batch once the batch is decoded.
func (s *Server) checkLimits(ctx *fasthttp.RequestCtx, r *request, e *endpoint) error {
	over, wait := auth.Requests, r.caller.Take(auth.Requests, 1, r.received)
	if c, ok := ctx.Conn().(*gate.Conn); wait == 0 && ok && !c.Counted {
		c.Counted = true
		over, wait = auth.Connections, r.caller.Take(auth.Connections, 1, r.received)
	}
	if wait == 0 && e.takes&takesWrite != 0 {
		over, wait = auth.Ops, r.caller.Take(auth.Ops, 1, r.received)
	}
	if wait == 0 || !r.refuse(auth.OverLimits, over.String()) {
		return nil
	}
	return &fault{
		status:     fasthttp.StatusTooManyRequests,
		code:       codeOverloaded,
		message:    fmt.Sprintf("user %s makes more %s than its limit allows; nothing was applied", r.caller.Name, over),
		retryAfter: seconds(wait),
		closes:     over == auth.Connections,
		refusal:    true,
	}
}

// seconds rounds up a duration for the header Retry-After.
func seconds(d time.Duration) int { return max(int(math.Ceil(d.Seconds())), 1) }

// countOps counts the ops of a decoded batch against the limit of its caller.
func (r *request) countOps() {
	if r.caller != nil {
		r.caller.Owe(auth.Ops, len(r.ops)-1, r.received)
	}
}

// may returns an error if the caller lacks that access to a keyspace.
func (r *identity) may(access auth.Access, keyspace []byte) error {
	if r.auth == nil || r.excused || r.caller.May(access, keyspace) {
		return nil
	}
	return r.forbidden(access, keyspace, nil)
}

// forbidden refuses a call whose caller lacks access to keyspace, or to some of keyspaces.
func (r *identity) forbidden(access auth.Access, keyspace []byte, keyspaces []string) error {
	target := string(keyspace)
	if len(keyspaces) > 0 {
		lacked := slices.DeleteFunc(slices.Clone(keyspaces), func(name string) bool { return r.caller.May(access, []byte(name)) })
		target = strings.Join(lacked, ", ")
	}
	if !r.refuse(auth.Forbidden, target) {
		r.excused = true
		return nil
	}
	message := fmt.Sprintf("user %s may not make this call", r.caller.Name)
	if access == auth.Read || access == auth.Ingest || access == auth.Write {
		message = fmt.Sprintf("user %s may not %s keyspace %s", r.caller.Name, map[auth.Access]string{
			auth.Read: "read", auth.Ingest: "add to", auth.Write: "write to"}[access], operate.Shown([]byte(target)))
	}
	return &fault{status: fasthttp.StatusForbidden, code: codePermissionDenied, message: message, refusal: true}
}

// refuse counts and logs a call that its caller may not make. It returns false if the mode
// permissive serves the call nevertheless.
func (r *identity) refuse(why auth.Refusal, target string) bool {
	return r.auth.Refuse(why, auth.Call{Caller: r.caller, From: r.from.RemoteAddr(), What: r.endpoint.name, Target: target})
}
