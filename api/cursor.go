package api

import (
	"errors"

	"github.com/countd/countd/internal/strictjson"
)

// cursor parses a body. Its Err is a *strictjson.FieldError or a *fault.
type cursor struct{ strictjson.Cursor }

// boolean reads true or false.
func (c *cursor) boolean(path string) bool {
	value, ok := c.Bool()
	if !ok {
		c.Fail(path, notBool)
	}
	return value
}

// stop records a fault of the whole body. It replaces an earlier fault.
func (c *cursor) stop(err error) {
	c.Err, _ = faultOf(err)
}

// fault returns the body's fault in the form of the API's answer, or nil.
func (c *cursor) fault() error {
	if e, ok := errors.AsType[*strictjson.FieldError](c.Err); ok {
		return invalid(e.Path, e.Problem)
	}
	return c.Err
}
