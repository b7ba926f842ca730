package api

import (
	"fmt"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/valyala/fasthttp"

	"github.com/countd/countd/admin"
	"github.com/countd/countd/api/metric"
	"github.com/countd/countd/auth"
	"github.com/countd/countd/engine"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/shard/sourcesink"
	"github.com/countd/countd/timeline"
	"github.com/countd/countd/unread"
)

// The codes of errors, which are part of the public contract.
const (
	codeInvalidArgument  = "invalid_argument"
	codeNotFound         = "not_found"
	codeUnknownKeyspace  = "unknown_keyspace"
	codeMethodNotAllowed = "method_not_allowed"
	codeRequestTimeout   = "request_timeout"
	codeOverflow         = "overflow"
	codeKeyspaceExists   = "keyspace_exists"
	codeTooLarge         = "too_large"
	codeOverloaded       = "overloaded"
	codeInternal         = "internal"
	codeNoLeader         = "no_leader"
	codeNoQuorum         = "no_quorum"
	codeDraining         = "draining"
	codeNotReady         = "not_ready"
	codeOutcomeUnknown   = "outcome_unknown"
	codeMemoryFull       = "memory_full"
	codeDiskFull         = "disk_full"
	codeConflict         = "idempotency_conflict"
	codeExpired          = "idempotency_expired"
	codeRefused          = "refused"
	codeUnreadable       = "unreadable"
	codePermissionDenied = "permission_denied"
	codeUnauthenticated  = "unauthenticated"
)

// fault is an error as the client sees it.
type fault struct {
	status  int
	code    string
	message string
	field   string // the wrong part of the request; "" if nothing is wrong
	allow   string // the methods that a 405 offers
	closes  bool   // the connection must close
	refusal bool   // whether authorize returned it, and has logged it

	retryAfter int // in seconds; 0 for the usual retryAfter

	text    []byte             // the answer's body if it was encoded in advance
	refused prometheus.Counter // counts such faults; nil if they are not counted

	// outcomes is set if the answer reports the outcome of the write's ops: applied and
	// unknown name the ids, and are present even when empty.
	outcomes         bool
	applied, unknown []uint64
	// byNumber adds the numbers of the ops to the answer. Ids do not identify ops on several
	// keyspaces, nor ops with members.
	byNumber               bool
	appliedOps, unknownOps []int
}

func (f *fault) Error() string { return f.code + ": " + f.message }

// invalid returns the fault of a bad value in a request. field is its JSON path, or the name of a
// header or parameter.
func invalid(field, problem string) *fault {
	return &fault{
		status:  fasthttp.StatusBadRequest,
		code:    codeInvalidArgument,
		message: field + ": " + problem,
		field:   field,
	}
}

// backendFaults maps errors of the backend to faults; the first match counts. Only the texts
// of these errors are sent: others may hold paths and addresses.
var backendFaults = []struct {
	err    error
	status int
	code   string
}{
	{admin.ErrNoSuchNode, fasthttp.StatusNotFound, codeNotFound},
	{admin.ErrNoSuchGroup, fasthttp.StatusNotFound, codeNotFound},
	{auth.ErrNoUser, fasthttp.StatusNotFound, codeNotFound},
	{auth.ErrNoToken, fasthttp.StatusNotFound, codeNotFound},
	{auth.ErrNoCatalog, fasthttp.StatusServiceUnavailable, codeNoLeader},
	{sourcesink.ErrUnknownSource, fasthttp.StatusNotFound, codeNotFound},
	{shard.ErrNotBackedUp, fasthttp.StatusNotFound, codeNotFound},
	{shard.ErrBadSnapshot, fasthttp.StatusBadRequest, codeInvalidArgument},
	{shard.ErrNotEmpty, fasthttp.StatusConflict, codeRefused},
	{shard.ErrRestoredOther, fasthttp.StatusConflict, codeRefused},
	{shard.ErrOtherRestore, fasthttp.StatusConflict, codeRefused},
	{shard.ErrUnknownKeyspace, fasthttp.StatusNotFound, codeUnknownKeyspace}, // may wrap any of the others, for a keyspace that was dropped
	{shard.ErrOutcomeUnknown, fasthttp.StatusGatewayTimeout, codeOutcomeUnknown},
	{shard.ErrTooLate, fasthttp.StatusTooManyRequests, codeOverloaded},
	{shard.ErrOverloaded, fasthttp.StatusTooManyRequests, codeOverloaded},
	{shard.ErrUnreadable, fasthttp.StatusServiceUnavailable, codeUnreadable}, // may wrap the two below
	{shard.ErrNoLeader, fasthttp.StatusServiceUnavailable, codeNoLeader},
	{shard.ErrNoQuorum, fasthttp.StatusServiceUnavailable, codeNoQuorum},
	{shard.ErrDraining, fasthttp.StatusServiceUnavailable, codeDraining},
	{shard.ErrDrained, fasthttp.StatusServiceUnavailable, codeDraining},
	{shard.ErrMemoryFull, fasthttp.StatusServiceUnavailable, codeMemoryFull},
	{shard.ErrDiskFull, fasthttp.StatusServiceUnavailable, codeDiskFull},
	{shard.ErrConflict, fasthttp.StatusConflict, codeConflict},
	{shard.ErrKeyAhead, fasthttp.StatusGone, codeExpired},
	{shard.ErrExpired, fasthttp.StatusGone, codeExpired},
	{shard.ErrKeyspaceExists, fasthttp.StatusConflict, codeKeyspaceExists},
	{shard.ErrUnknownColumn, fasthttp.StatusNotFound, codeNotFound},
	{unread.ErrNoNotice, fasthttp.StatusNotFound, codeNotFound},
	{timeline.ErrNoGroup, fasthttp.StatusNotFound, codeNotFound},
	{timeline.ErrOverflow, fasthttp.StatusConflict, codeOverflow},
}

// nothingApplied ends the message of a write that reached its deadline before it was
// proposed. Otherwise a client that knows its deadline passed would treat the answer as a
// 504.
const nothingApplied = "; nothing was applied"

// retryAfter, in seconds, is sent with every fault that a repeat may resolve. Queues drain in
// milliseconds, and an election takes about a second.
const retryAfter = 1

// ofWrite adds the outcome of the ops to a fault after which the caller repeats the write. Unless
// the fault names ops, none was applied.
func (f *fault) ofWrite(byNumber bool) {
	f.outcomes = f.outcomes || f.status == fasthttp.StatusServiceUnavailable || f.status == fasthttp.StatusGatewayTimeout
	if f.outcomes && byNumber {
		f.byNumber = true
	}
}

func (f *fault) retryable() bool {
	return f.status == fasthttp.StatusTooManyRequests || f.status == fasthttp.StatusServiceUnavailable
}

// overloads holds the api's own refusals because of load. They are encoded in advance, because
// they come in bursts and must cost little.
type overloads struct{ inFlight, wait, bodies *fault }

func newOverloads(m *metric.Metrics) overloads {
	of := func(reason, message string) *fault {
		f := &fault{
			status: fasthttp.StatusTooManyRequests, code: codeOverloaded, message: message,
			refused: m.Overloads.WithLabelValues(reason),
		}
		f.text = f.appendJSON(nil)
		return f
	}
	return overloads{
		inFlight: of("in_flight", "too many requests in flight"),
		wait:     of("wait", "the writes in flight would take too much of this one's deadline"),
		bodies:   of("bodies", "the bodies in flight take all the memory that they may"),
	}
}

// appendJSON appends the body of the answer.
func (f *fault) appendJSON(dst []byte) []byte {
	if f.text != nil {
		return append(dst, f.text...)
	}
	dst = append(dst, `{"error":`...)
	dst = appendError(dst, f.code, f.message, f.field)
	if f.outcomes {
		dst = append(dst, `,"applied":`...)
		dst = appendIDs(dst, f.applied)
		dst = append(dst, `,"unknown":`...)
		dst = appendIDs(dst, f.unknown)
	}
	if f.outcomes && f.byNumber {
		dst = appendInts(append(dst, `,"applied_ops":`...), f.appliedOps)
		dst = appendInts(append(dst, `,"unknown_ops":`...), f.unknownOps)
	}
	return append(dst, '}')
}

// appendError appends {"code":…,"message":…,"field":…}.
func appendError(dst []byte, code, message, field string) []byte {
	dst = append(dst, `{"code":"`...)
	dst = append(dst, code...)
	dst = append(dst, `","message":`...)
	dst = appendString(dst, message)
	if field != "" {
		dst = append(dst, `,"field":`...)
		dst = appendString(dst, field)
	}
	return append(dst, '}')
}

// shown returns a client's own text for an error: at most 64 bytes, and quotes for an empty name.
func shown(text []byte) string {
	const shownMax = 64
	if len(text) == 0 {
		return `""`
	}
	if len(text) > shownMax {
		return string(text[:shownMax]) + "…"
	}
	return string(text)
}

// The faults of a value that more than one field can have.
const (
	notUint64  = "not an unsigned 64-bit integer"
	notInt64   = "not a signed 64-bit integer"
	notObject  = "not an object"
	notArray   = "not an array"
	notString  = "not a string"
	notBool    = "neither true nor false"
	missing    = "missing"
	givenTwice = "given twice"
	noSuchFld  = "no such field"
	noColumn   = "no such column"
	oneColumn  = "at least one column is needed"
	notCursor  = "not a cursor of this call"
)

// bodyOfOps reminds a client that sent one op of the form of a batch.
const bodyOfOps = `; the body is {"ops":[…]}`

// noField returns the problem of an unknown field, with the fields that the object may have.
func noField(known ...string) string {
	if len(known) == 0 {
		return noSuchFld
	}
	return noSuchFld + "; there are " + listed(known)
}

// noColumnOf returns the problem of a column that a keyspace does not have.
func noColumnOf(ks *shard.Keyspace) string {
	return noColumn + "; " + ks.Name + " has " + listed(ks.Names())
}

// listedMax bounds the names in a message.
const listedMax = 20

// listed returns names for a message.
func listed(names []string) string {
	more := ""
	if n := len(names) - listedMax; n > 0 {
		names, more = names[:listedMax], fmt.Sprintf(" and %d more", n)
	}
	return strings.Join(names, ", ") + more
}

// withKeyspaces returns a copy of the fault of an unknown keyspace. The message of the copy lists
// the existing keyspaces of counters. withKeyspaces returns any other fault unchanged.
func (f *fault) withKeyspaces(all []*shard.Keyspace) *fault {
	var names []string
	for _, ks := range all {
		if ks.Kind == shard.KindCounters {
			names = append(names, ks.Name)
		}
	}
	if len(names) == 0 || !strings.HasSuffix(f.message, shard.ErrUnknownKeyspace.Error()) {
		return f
	}
	with := *f
	with.message += "; of counters there are " + listed(names)
	return &with
}

// overflowFault returns the fault for an op whose sum does not fit int64.
func overflowFault(w *shard.Write, ks *shard.Keyspace, overflow engine.Overflow) *fault {
	field := opPath(overflow.Op, "set")
	if !w.Ops[overflow.Op].OfMember() {
		field = opPath(overflow.Op, "add") + "." + ks.Columns[overflow.Column]
	}
	return &fault{
		status:  fasthttp.StatusConflict,
		code:    codeOverflow,
		message: field + ": the sum is " + notInt64,
		field:   field,
	}
}

// opPath returns the JSON path of a member of the ith op.
func opPath(i int, member string) string {
	switch {
	case i == bodyOp:
		return member
	case member == "":
		return fmt.Sprintf("ops[%d]", i)
	}
	return fmt.Sprintf("ops[%d].%s", i, member)
}

// bodyOp stands for the number of an op if the op is the whole body, as in a PUT.
const bodyOp = -1
