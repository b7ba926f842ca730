package api

import (
	"context"
	"errors"
	"strings"

	"github.com/valyala/fasthttp"

	"github.com/countd/countd/admin"
	"github.com/countd/countd/auth"
	"github.com/countd/countd/internal/strictjson"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/tiering"
)

// faultOf returns the fault for an error of a handler. It returns false for an unexpected error,
// which is a failure of the server.
func faultOf(err error) (*fault, bool) {
	if partial, ok := errors.AsType[*shard.PartialError](err); ok { // AsType does not allocate
		return faultOfPartial(partial)
	}
	if f, ok := errors.AsType[*fault](err); ok {
		return f, true
	}
	if e, ok := errors.AsType[*catalog.RefusedError](err); ok {
		return &fault{status: fasthttp.StatusConflict, code: codeRefused, message: e.Reason}, true
	}
	if silent, ok := errors.AsType[*tiering.ColdSilentError](err); ok {
		return &fault{status: fasthttp.StatusServiceUnavailable, code: codeNoQuorum, message: silent.Error()}, true
	}
	if field, ok := errors.AsType[*strictjson.FieldError](err); ok {
		return invalid(field.Path, field.Problem), true
	}
	if field, ok := errors.AsType[*auth.FieldError](err); ok {
		return invalid(field.Field, field.Problem), true
	}
	if errors.Is(err, auth.ErrUserChanged) {
		return &fault{status: fasthttp.StatusConflict, code: codeRefused, message: "was: " + err.Error(), field: "was"}, true
	}
	var argument *errs.ArgumentError
	if errors.As(err, &argument) {
		return invalid(argument.Field, argument.Problem), true
	}
	if errors.Is(err, errs.ErrBadToken) {
		return invalid(headerToken, errs.ErrBadToken.Error()), true
	}
	if limit, ok := errors.AsType[*errs.LimitError](err); ok {
		return &fault{status: fasthttp.StatusConflict, code: codeRefused, message: limit.Text}, true
	}
	for _, b := range backendFaults {
		if errors.Is(err, b.err) {
			f := &fault{status: b.status, code: b.code, message: b.err.Error()}
			if errors.Is(b.err, admin.ErrBadSnapshot) {
				f.message = err.Error() // describes a fault in the client's data
			}
			var full *errs.DiskFullError
			if errors.As(err, &full) {
				f.message = full.Error() // contains only numbers
			}
			var damaged *shard.UnreadableError
			if errors.As(err, &damaged) {
				f.message = damaged.Error() // contains only a keyspace and a number
			}
			if errors.Is(b.err, errs.ErrTooLate) {
				f.message += nothingApplied
			}
			return f, true
		}
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		// Only changes of the catalog have a context. If the context ended, the change may have
		// been proposed.
		return faultOf(errs.ErrOutcomeUnknown)
	}
	return &fault{
		status:  fasthttp.StatusInternalServerError,
		code:    codeInternal,
		message: "the server failed; its log says why",
	}, false
}

// faultOfPartial returns the fault for a write that only some of its shards applied. It is a 504
// if the outcome of any op is unknown, and otherwise the fault of the failed shards. A 429 becomes
// a 503, because without a key the client must not repeat the whole write.
func faultOfPartial(partial *shard.PartialError) (*fault, bool) {
	err := partial.Err
	if len(partial.Unknown) > 0 {
		err = errs.ErrOutcomeUnknown
	}
	of, foreseen := faultOf(err)
	f := new(fault)
	*f = *of                                                               // copy it, because other requests may share it
	f.text, f.message = nil, strings.TrimSuffix(f.message, nothingApplied) // remove nothingApplied, because some ops were applied
	if f.status == fasthttp.StatusTooManyRequests {
		f.status = fasthttp.StatusServiceUnavailable
	}
	f.outcomes, f.applied, f.unknown = true, partial.Applied, partial.Unknown
	f.appliedOps, f.unknownOps = partial.AppliedOps, partial.UnknownOps
	return f, foreseen
}
