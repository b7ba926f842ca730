package api

import (
	"bytes"
	"slices"

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
	c := r.objectIn(optional(body))
	values := make([]string, len(members))
	var s seen
	for n := 0; c.next(n, '}'); n++ {
		key := string(c.key())
		i := slices.Index(members, key)
		if i < 0 {
			c.fail(shown([]byte(key)), noSuchFld)
			break
		}
		s.once(c, i, key)
		values[i] = c.name(key)
	}
	for i, member := range members {
		switch {
		case !s.has(i):
			c.fail(member, missing)
		case values[i] == "":
			c.fail(member, "empty")
		}
	}
	return values, r.decoded()
}

// decodeVersionChange reads the one member of a change of the cluster version.
func (r *request) decodeVersionChange(body []byte) (admin.Change, error) {
	c := r.objectIn(optional(body))
	var change admin.Change
	for n := 0; c.next(n, '}'); n++ {
		if n > 0 {
			c.fail("body", "one of hold and finalize")
		}
		switch key := c.key(); string(key) {
		case "hold":
			change = admin.HoldChange{Held: c.boolean("hold")}
		case "finalize":
			if !c.boolean("finalize") {
				c.fail("finalize", "it can only be true")
			}
			change = admin.FinalizeChange{}
		default:
			c.fail(shown(key), noSuchFld)
		}
	}
	if change == nil {
		c.fail("body", "one of hold and finalize")
	}
	return change, r.decoded()
}

// boolean reads true or false.
func (c *cursor) boolean(path string) bool {
	c.peek()
	for _, word := range []string{"true", "false"} {
		if bytes.HasPrefix(c.data[c.at:], []byte(word)) {
			c.at += len(word)
			return word == "true"
		}
	}
	c.fail(path, "neither true nor false")
	return false
}
