package api

import (
	"fmt"
	"time"

	"github.com/countd/countd/auth"
	"github.com/countd/countd/raftfsm/catalog"
)

// decodeUser parses {"grants":[{"role":…,"keyspaces":[…]},…],"limits":{…}?,"was":{…}?}.
// Package auth checks the values. was is nil if it is missing.
func (r *request) decodeUser(body []byte) (rights catalog.UserRights, was *catalog.UserRights, err error) {
	c := r.objectIn(body)
	rights = c.rights("", func(key []byte) bool {
		if string(key) != "was" {
			return false
		}
		if was != nil {
			c.Fail("was", givenTwice)
		} else if !c.Begin('{') {
			c.Fail("was", notObject)
		}
		before := c.rights("was.", func([]byte) bool { return false })
		was = &before
		return true
	})
	return rights, was, r.decoded()
}

// rights parses the fields of an object behind its opening brace: grants and limits. Any other
// field goes to other, which reports whether it knows it. An error names the field behind path.
func (c *cursor) rights(path string, other func(key []byte) bool) (rights catalog.UserRights) {
	var s seen
	for n := 0; c.Next(n, '}'); n++ {
		switch key := c.Key(); string(key) {
		case "grants":
			s.once(c, 0, path+"grants")
			rights.Grants = c.grants(path + "grants")
		case "limits":
			s.once(c, 1, path+"limits")
			rights.Limits = c.limits(path + "limits")
		default:
			if !other(key) {
				c.Fail(path+shown(key), noField("grants", "limits"))
			}
		}
	}
	s.need(c, 0, path+"grants")
	return rights
}

func (c *cursor) grants(path string) (grants []catalog.Grant) {
	if !c.Begin('[') {
		c.Fail(path, notArray)
	}
	for i := 0; c.Next(i, ']'); i++ {
		if i == catalog.GrantsMax {
			c.Fail(path, fmt.Sprintf("more than %d", catalog.GrantsMax))
			break
		}
		grants = append(grants, c.grant(fmt.Sprintf("%s[%d]", path, i)))
	}
	return grants
}

// grant parses {"role":…,"keyspaces":[…]?}. Without keyspaces, those of the grant are nil.
func (c *cursor) grant(path string) (g catalog.Grant) {
	if !c.Begin('{') {
		c.Fail(path, notObject)
	}
	var s seen
	for n := 0; c.Next(n, '}'); n++ {
		switch key := c.Key(); string(key) {
		case "role":
			s.once(c, 0, path+".role")
			g.Role = c.name(path + ".role")
		case "keyspaces":
			s.once(c, 1, path+".keyspaces")
			g.Keyspaces = c.names(path+".keyspaces", catalog.GrantKeyspacesMax)
		default:
			c.Fail(path+"."+shown(key), noField("role", "keyspaces"))
		}
	}
	s.need(c, 0, path+".role")
	return g
}

// names parses a list of strings that outlive the request. It returns no nil.
func (c *cursor) names(path string, most int) []string {
	if !c.Begin('[') {
		c.Fail(path, notArray)
	}
	names := []string{}
	for n := 0; c.Next(n, ']'); n++ {
		if n == most {
			c.Fail(path, fmt.Sprintf("more than %d", most))
			break
		}
		names = append(names, c.name(fmt.Sprintf("%s[%d]", path, n)))
	}
	return names
}

// limits parses the limits of a user; a missing one is 0.
func (c *cursor) limits(path string) (l catalog.UserLimits) {
	if !c.Begin('{') {
		c.Fail(path, notObject)
	}
	var s seen
	for n := 0; c.Next(n, '}'); n++ {
		key := string(c.Key())
		at := path + "." + shown([]byte(key))
		var to *int64
		bit := 0
		switch key {
		case "requests_per_second":
			to, bit = &l.Requests, 0
		case "ops_per_second":
			to, bit = &l.Ops, 1
		case "connections_per_second":
			to, bit = &l.Connections, 2
		default:
			c.Fail(at, noField("requests_per_second", "ops_per_second", "connections_per_second"))
			return l
		}
		s.once(c, bit, at)
		var ok bool
		if *to, ok = c.Int64(); !ok {
			c.Fail(at, notInt64)
		}
	}
	return l
}

// decodeToken parses {"expires_in":…?}; 0 stands for never.
func (r *request) decodeToken(body []byte) (expiresIn time.Duration, err error) {
	_, err = r.members(optional(body), []string{"expires_in"}, func(c *cursor, _ int) {
		var bad error
		if expiresIn, bad = time.ParseDuration(c.name("expires_in")); bad != nil || expiresIn <= 0 || expiresIn > auth.ExpiresInMax {
			c.Fail("expires_in", auth.ExpiresInRule)
		}
	})
	return expiresIn, err
}
