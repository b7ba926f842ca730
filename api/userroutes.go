package api

import "bytes"

// userPaths are the paths of users and their tokens.
type userPaths struct {
	all    *resource // /v1/users
	one    *resource // /v1/users/{name}
	tokens *resource // /v1/users/{name}/tokens
	token  *resource // /v1/users/{name}/tokens/{id}
}

// match finds the resource of a path. The target holds the user in its field keyspace, and
// the token in its field column.
func (u *userPaths) match(path []byte) target {
	if string(path) == "/v1/users" {
		return target{resource: u.all}
	}
	rest, ok := bytes.CutPrefix(path, []byte("/v1/users/"))
	name, rest, deeper := bytes.Cut(rest, []byte("/"))
	if !ok || len(name) == 0 {
		return target{}
	}
	id, isToken := bytes.CutPrefix(rest, []byte("tokens/"))
	switch {
	case !deeper:
		return target{resource: u.one, keyspace: name}
	case string(rest) == "tokens":
		return target{resource: u.tokens, keyspace: name}
	case isToken && len(id) > 0 && bytes.IndexByte(id, '/') < 0:
		return target{resource: u.token, keyspace: name, column: id}
	}
	return target{}
}
