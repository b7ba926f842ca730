package api

import (
	"errors"

	"github.com/countd/countd/internal/strictjson"
)

// cursor parses a body. Its Err is a *strictjson.FieldError or a *fault.
type cursor struct{ strictjson.Cursor }

// stop records a fault that is not one of a value, in place of any other.
func (c *cursor) stop(err error) {
	c.Err, _ = faultOf(err)
}

// fault returns the first fault of the body as the API answers it; nil if there is none.
func (c *cursor) fault() error {
	if e, ok := errors.AsType[*strictjson.FieldError](c.Err); ok {
		return invalid(e.Path, e.Problem)
	}
	return c.Err
}
