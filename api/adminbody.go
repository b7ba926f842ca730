package api

import (
	"github.com/countd/countd/admin"
)

// decodeNothing parses {} or an empty body.
func (r *request) decodeNothing(body []byte) error {
	_, err := r.decodeNames(body)
	return err
}

// decodeNames reads an object of strings, one for each of these members, and
// returns them in this order. They outlive the request.
func (r *request) decodeNames(body []byte, members ...string) ([]string, error) {
	values := make([]string, len(members))
	err := r.allMembers(optional(body), members, func(c *cursor, i int) {
		if values[i] = c.name(members[i]); values[i] == "" {
			c.Fail(members[i], "empty")
		}
	})
	return values, err
}

// decodeVersionChange reads the one member of a change of the cluster version.
func (r *request) decodeVersionChange(body []byte) (admin.Change, error) {
	c := r.objectIn(optional(body))
	var change admin.Change
	for n := 0; c.Next(n, '}'); n++ {
		if n > 0 {
			c.Fail("body", "one of hold and finalize")
		}
		switch key := c.Key(); string(key) {
		case "hold":
			change = admin.HoldChange{Held: c.boolean("hold")}
		case "finalize":
			if !c.boolean("finalize") {
				c.Fail("finalize", "it can only be true")
			}
			change = admin.FinalizeChange{}
		default:
			c.Fail(shown(key), noField("hold", "finalize"))
		}
	}
	if change == nil {
		c.Fail("body", "one of hold and finalize")
	}
	return change, r.decoded()
}

// boolean reads true or false.
func (c *cursor) boolean(path string) bool {
	value, ok := c.Bool()
	if !ok {
		c.Fail(path, notBool)
	}
	return value
}
