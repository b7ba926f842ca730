package api

import (
	"errors"

	"github.com/valyala/fasthttp"

	"github.com/countd/countd/admin"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/shard/sourcesink"
	"github.com/countd/countd/shard/tiering"
	"github.com/countd/countd/sources"
)

// adminFaults maps errors of an Admin to faults, in addition to backendFaults.
var adminFaults = []struct {
	err    error
	status int
	code   string
}{
	{admin.ErrNoSuchNode, fasthttp.StatusNotFound, codeNotFound},
	{admin.ErrNoSuchGroup, fasthttp.StatusNotFound, codeNotFound},
	{sourcesink.ErrUnknownSource, fasthttp.StatusNotFound, codeNotFound},
	{shard.ErrNotBackedUp, fasthttp.StatusNotFound, codeNotFound},
	{shard.ErrBadSnapshot, fasthttp.StatusBadRequest, codeInvalidArgument},
	{shard.ErrNotEmpty, fasthttp.StatusConflict, codeRefused},
	{shard.ErrRestoredOther, fasthttp.StatusConflict, codeRefused},
	{shard.ErrOtherRestore, fasthttp.StatusConflict, codeRefused},
}

// adminFault returns the fault for an error of an Admin, or nil for other errors.
func adminFault(err error) *fault {
	if refused, ok := errors.AsType[*admin.RefusedError](err); ok {
		return &fault{status: fasthttp.StatusConflict, code: codeRefused, message: refused.Reason}
	}
	if refused, ok := errors.AsType[*sources.RefusedError](err); ok {
		return &fault{status: fasthttp.StatusConflict, code: codeRefused, message: refused.Reason}
	}
	if silent, ok := errors.AsType[*tiering.ColdSilentError](err); ok {
		return &fault{status: fasthttp.StatusServiceUnavailable, code: codeNoQuorum, message: silent.Error()}
	}
	for _, a := range adminFaults {
		if errors.Is(err, a.err) {
			f := &fault{status: a.status, code: a.code, message: a.err.Error()}
			if errors.Is(a.err, shard.ErrBadSnapshot) {
				f.message = err.Error() // describes the defect of the client's data
			}
			return f
		}
	}
	return nil
}
