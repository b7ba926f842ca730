package api

import (
	"fmt"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/valyala/fasthttp"

	"github.com/countd/countd/admin"
	"github.com/countd/countd/api/gate"
	"github.com/countd/countd/api/operate"
	"github.com/countd/countd/auth"
	"github.com/countd/countd/client/column"
	"github.com/countd/countd/engine"
	"github.com/countd/countd/inbox"
	"github.com/countd/countd/internal/strictjson"
	"github.com/countd/countd/names"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/sources"
)

// The codes of errors, which are part of the public contract.
const (
	codeInvalidArgument  = "invalid_argument"
	codeNotFound         = "not_found"
	codeUnknownKeyspace  = "unknown_keyspace"
	codeMethodNotAllowed = "method_not_allowed"
	codeRequestTimeout   = "request_timeout"
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

// fault is an error in the form of an answer.
type fault struct {
	status  int
	code    string
	message string
	field   string // the invalid part of the request; "" if no part is invalid
	allow   string // for a 405: the allowed methods
	closes  bool   // the connection must close
	refusal bool   // the fault is a refusal that authorize has returned and logged

	retryAfter int // in seconds; 0 for the usual retryAfter

	text    []byte             // body of the answer, if it was encoded in advance
	refused prometheus.Counter // counts such faults; nil if they are not counted

	// outcomes is set if the answer has the lists applied and unknown of the ids of ops. The lists
	// may be empty.
	outcomes         bool
	applied, unknown []uint64
	// byNumber adds the indexes of the ops to the answer, because ids do not identify ops on
	// several keyspaces, or ops with members.
	byNumber               bool
	appliedOps, unknownOps []int
	texts                  names.Slots // of the ids in the lists
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

// backendFaults maps errors of the backend to faults; the first match counts. The server sends only
// the texts of these errors, because other errors may contain paths and addresses.
var backendFaults = []struct {
	err    error
	status int
	code   string
}{
	{admin.ErrNoSuchNode, fasthttp.StatusNotFound, codeNotFound},
	{admin.ErrNoSuchGroup, fasthttp.StatusNotFound, codeNotFound},
	{auth.ErrNoUser, fasthttp.StatusNotFound, codeNotFound},
	{auth.ErrNoToken, fasthttp.StatusNotFound, codeNotFound},
	{auth.ErrNoAuditLog, fasthttp.StatusConflict, codeRefused},
	{auth.ErrNoCatalog, fasthttp.StatusServiceUnavailable, codeNoLeader},
	{sources.ErrUnknownSource, fasthttp.StatusNotFound, codeNotFound},
	{shard.ErrNotBackedUp, fasthttp.StatusNotFound, codeNotFound},
	{admin.ErrBadSnapshot, fasthttp.StatusBadRequest, codeInvalidArgument},
	{admin.ErrShardNotEmpty, fasthttp.StatusConflict, codeRefused},
	{admin.ErrOtherNames, fasthttp.StatusConflict, codeRefused},
	{admin.ErrRestoredOther, fasthttp.StatusConflict, codeRefused},
	{admin.ErrOtherRestore, fasthttp.StatusConflict, codeRefused},
	{errs.ErrUnknownKeyspace, fasthttp.StatusNotFound, codeUnknownKeyspace}, // first, because the error for a dropped keyspace may wrap any other error
	{errs.ErrOutcomeUnknown, fasthttp.StatusGatewayTimeout, codeOutcomeUnknown},
	{errs.ErrTooLate, fasthttp.StatusTooManyRequests, codeOverloaded},
	{errs.ErrOverloaded, fasthttp.StatusTooManyRequests, codeOverloaded},
	{errs.ErrUnreadable, fasthttp.StatusServiceUnavailable, codeUnreadable}, // before the next two errors, which this error may wrap
	{errs.ErrNoLeader, fasthttp.StatusServiceUnavailable, codeNoLeader},
	{errs.ErrNoQuorum, fasthttp.StatusServiceUnavailable, codeNoQuorum},
	{errs.ErrDraining, fasthttp.StatusServiceUnavailable, codeDraining},
	{errs.ErrDrained, fasthttp.StatusServiceUnavailable, codeDraining},
	{errs.ErrMemoryFull, fasthttp.StatusServiceUnavailable, codeMemoryFull},
	{errs.ErrDiskFull, fasthttp.StatusServiceUnavailable, codeDiskFull},
	{errs.ErrConflict, fasthttp.StatusConflict, codeConflict},
	{errs.ErrKeyAhead, fasthttp.StatusGone, codeExpired},
	{errs.ErrExpired, fasthttp.StatusGone, codeExpired},
	{errs.ErrKeyspaceExists, fasthttp.StatusConflict, codeKeyspaceExists},
	{errs.ErrUnknownColumn, fasthttp.StatusNotFound, codeNotFound},
	{inbox.ErrNoNotice, fasthttp.StatusNotFound, codeNotFound},
	{inbox.ErrNoGroup, fasthttp.StatusNotFound, codeNotFound},
	{inbox.ErrPostsOverflow, fasthttp.StatusConflict, column.Overflow.Reason().Code},
}

// nothingApplied ends the message for a write that reached its deadline before it was proposed.
// Without this text, the client would have to assume an unknown outcome.
const nothingApplied = "; nothing was applied"

// retryAfter, in seconds, is sent with every fault after which a repeat may succeed. A queue
// empties in milliseconds, and an election takes about a second.
const retryAfter = 1

// ofWrite makes the answer list the applied ops and those of unknown outcome, if the fault is one
// after which clients repeat a write. Empty lists mean that no op was applied.
func (f *fault) ofWrite(byNumber bool) {
	f.outcomes = f.outcomes || f.status == fasthttp.StatusServiceUnavailable || f.status == fasthttp.StatusGatewayTimeout
	if f.outcomes && byNumber {
		f.byNumber = true
	}
}

func (f *fault) retryable() bool {
	return f.status == fasthttp.StatusTooManyRequests || f.status == fasthttp.StatusServiceUnavailable
}

// overloads has the faults with which a busy server refuses requests. They are encoded in advance,
// because they come in bursts and must cost little.
type overloads struct{ inFlight, wait, bodies *fault }

func newOverloads(m *gate.Metrics) overloads {
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
	dst = appendError(append(dst, `{"error":`...), f.code, f.message, f.field)
	if f.outcomes {
		dst = f.appendOps(append(dst, `,"applied":[`...), f.applied, f.appliedOps)
		dst = f.appendOps(append(dst, `,"unknown":[`...), f.unknown, f.unknownOps)
	}
	if f.outcomes && f.byNumber {
		dst = appendInts(append(dst, `,"applied_ops":`...), f.appliedOps)
		dst = appendInts(append(dst, `,"unknown_ops":`...), f.unknownOps)
	}
	return append(dst, '}')
}

// appendOps appends the ids of ops, or the id in the path, and the end of the array.
func (f *fault) appendOps(dst []byte, ids []uint64, ops []int) []byte {
	for i, id := range ids {
		slot := pathSlot
		if i < len(ops) {
			slot = opSlot + 2*ops[i]
		}
		dst = f.texts.Append(comma(dst, i), slot, id)
	}
	return append(dst, ']')
}

// appendError appends {"code":…,"message":…,"field":…}.
func appendError(dst []byte, code, message, field string) []byte {
	dst = append(append(append(dst, `{"code":"`...), code...), `","message":`...)
	dst = strictjson.AppendString(dst, message)
	if field != "" {
		dst = strictjson.AppendString(append(dst, `,"field":`...), field)
	}
	return append(dst, '}')
}

// The problems that values of several fields can have, besides those of package strictjson.
const (
	noColumn  = "no such column"
	oneColumn = "at least one column is needed"
	notCursor = "not a cursor of this call"
)

// bodyOfOps tells a client that sent a single op how to send a batch.
const bodyOfOps = `; the body is {"ops":[…]}`

// noColumnOf returns the problem of a column name that a keyspace does not have.
func noColumnOf(ks *shard.Keyspace) string {
	return noColumn + "; " + ks.Name + " has " + operate.Listed(ks.ColumnNames())
}

// withKeyspaces returns a copy of the fault of an unknown keyspace. The message of the copy lists
// the existing keyspaces of counters. withKeyspaces returns any other fault unchanged.
func (f *fault) withKeyspaces(all []*shard.Keyspace) *fault {
	var names []string
	for _, ks := range all {
		if ks.Kind == kinds.Counters {
			names = append(names, ks.Name)
		}
	}
	if len(names) == 0 || !strings.HasSuffix(f.message, errs.ErrUnknownKeyspace.Error()) {
		return f
	}
	with := *f
	with.message += "; of counters there are " + operate.Listed(names)
	return &with
}

// overflowFault returns the fault for an op that its shard refused.
func overflowFault(ops counters.Ops, ks *shard.Keyspace, overflow engine.Overflow) *fault {
	field := opPath(overflow.Op, "set")
	if !ops[overflow.Op].OfMember() {
		field = opPath(overflow.Op, "add") + "." + ks.Columns[overflow.Column]
	}
	why := overflow.Why.Reason()
	return &fault{
		status:  fasthttp.StatusConflict,
		code:    why.Code,
		message: field + ": " + why.Problem,
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

// bodyOp is used instead of an op's index if the op is the whole body, as in a PUT.
const bodyOp = -1

// notCount is the problem of a value that is not a count or a notice number.
const notCount = "not an integer from 0 to 9223372036854775807"
