package api

import (
	"errors"

	"github.com/valyala/fasthttp"

	"github.com/countd/countd/auth"
)

// userFault returns the fault for an error of package auth, or nil for other errors.
func userFault(err error) *fault {
	if field, ok := errors.AsType[*auth.FieldError](err); ok {
		return invalid(field.Field, field.Problem)
	}
	if refused, ok := errors.AsType[*auth.RefusedError](err); ok {
		return &fault{status: fasthttp.StatusConflict, code: codeRefused, message: refused.Reason}
	}
	if errors.Is(err, auth.ErrUserChanged) {
		return &fault{status: fasthttp.StatusConflict, code: codeRefused, message: "was: " + err.Error(), field: "was"}
	}
	for _, known := range []error{auth.ErrNoUser, auth.ErrNoToken} {
		if errors.Is(err, known) {
			return &fault{status: fasthttp.StatusNotFound, code: codeNotFound, message: known.Error()}
		}
	}
	if errors.Is(err, auth.ErrNoCatalog) {
		return &fault{status: fasthttp.StatusServiceUnavailable, code: codeNoLeader, message: err.Error()}
	}
	return nil
}
