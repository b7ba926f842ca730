package api

import (
	"bytes"
)

// sourcePaths are the paths of sources.
type sourcePaths struct {
	list  *resource            // /v1/sources
	one   *resource            // /v1/sources/{source}
	verbs map[string]*resource // /v1/sources/{source}/<verb>
}

// match finds the resource of a path. The target holds the source in its field keyspace.
func (p *sourcePaths) match(path []byte) target {
	rest, ok := bytes.CutPrefix(path, []byte("/v1/sources"))
	if !ok {
		return target{}
	}
	if len(rest) == 0 {
		return target{resource: p.list}
	}
	name, verb, deeper := bytes.Cut(rest[1:], []byte("/"))
	switch {
	case rest[0] != '/' || len(name) == 0:
		return target{}
	case deeper:
		return target{resource: p.verbs[string(verb)], keyspace: name}
	}
	return target{resource: p.one, keyspace: name}
}
