package api

import "bytes"

// memberPaths are the paths of members of columns, by what follows the column.
type memberPaths struct {
	change *resource // /v1/members/{keyspace}/{column}
	check  *resource // /v1/members/{keyspace}/{column}/check
	list   *resource // /v1/members/{keyspace}/{column}/{id}
	of     *resource // /v1/members/{keyspace}/{column}/of/{member}
}

// match finds the resource of a path after /v1/members/.
func (m *memberPaths) match(rest []byte) target {
	keyspace, rest, _ := bytes.Cut(rest, []byte("/"))
	column, last, deeper := bytes.Cut(rest, []byte("/"))
	to := target{keyspace: keyspace, column: column}
	if len(keyspace) == 0 || len(column) == 0 {
		return target{}
	}
	member, isOf := bytes.CutPrefix(last, []byte("of/"))
	switch {
	case !deeper:
		to.resource = m.change
	case string(last) == "check":
		to.resource = m.check
	case isOf && len(member) > 0 && bytes.IndexByte(member, '/') < 0:
		to.resource, to.id = m.of, member
	case len(last) > 0 && bytes.IndexByte(last, '/') < 0:
		to.resource, to.id = m.list, last
	default:
		return target{}
	}
	return to
}
