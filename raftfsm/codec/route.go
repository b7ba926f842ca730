package codec

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Route names one shard of a keyspace: shard Residue of Modulus shards. It is in the head of each
// section of a request, each read and each snapshot of a shard:
//
//	route:  modulus (uvarint) | residue (uvarint)
//
// A replica of another route refuses the whole section, read or snapshot, and changes nothing: the
// keys stand for other ids there.
type Route struct {
	Modulus uint32 // at least 1
	Residue uint32 // below Modulus
}

// ErrRoute is returned for a section, read or snapshot whose route differs from the replica's.
var ErrRoute = errors.New("it is of another number of shards or of another shard")

func (r Route) String() string { return fmt.Sprintf("shard %d of %d", r.Residue, r.Modulus) }

// AppendTo appends the route. It panics if the residue is not below the modulus.
func (r Route) AppendTo(dst []byte) []byte {
	if r.Residue >= r.Modulus {
		panic(r.String() + " has no form in a log entry")
	}
	return binary.AppendUvarint(binary.AppendUvarint(dst, uint64(r.Modulus)), uint64(r.Residue))
}

// ParseRoute parses the route at the beginning of p, and returns the bytes after it. If p does not
// begin with a route, it returns false.
func ParseRoute(p []byte) (r Route, rest []byte, ok bool) {
	modulus, n := binary.Uvarint(p)
	if n <= 0 || modulus > 1<<32-1 {
		return r, nil, false
	}
	residue, m := binary.Uvarint(p[n:])
	if m <= 0 || residue >= modulus {
		return r, nil, false
	}
	return Route{uint32(modulus), uint32(residue)}, p[n+m:], true
}

// Check returns an ErrRoute if the route of a section, read or snapshot differs from
// the replica's.
func (r Route) Check(of Route) error {
	if r == of {
		return nil
	}
	return fmt.Errorf("%w: %s, and the replica is of %s", ErrRoute, of, r)
}
