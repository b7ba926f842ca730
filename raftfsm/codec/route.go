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
// A replica of another route refuses the whole section or read, because its keys stand for other
// ids.
type Route struct {
	Modulus uint32 // at least 1, at most ModulusMax
	Residue uint32 // below Modulus
}

// Whole is the route of the only shard of a keyspace, and of the catalog. It is read only.
var Whole = Route{Modulus: 1}

// ModulusMax bounds the modulus of a route.
const ModulusMax = 1<<31 - 1

// ErrRoute is returned for a section, read or snapshot whose route does not fit the replica.
var ErrRoute = errors.New("it is of another number of shards or of another shard")

func (r Route) String() string { return fmt.Sprintf("shard %d of %d", r.Residue, r.Modulus) }

// AppendTo appends the route. It panics if the residue is not below the modulus, or if the modulus
// is above ModulusMax.
func (r Route) AppendTo(dst []byte) []byte {
	if r.Residue >= r.Modulus || r.Modulus > ModulusMax {
		panic(r.String() + " has no form in a log entry")
	}
	return binary.AppendUvarint(binary.AppendUvarint(dst, uint64(r.Modulus)), uint64(r.Residue))
}

// ParseRoute parses the route at the beginning of p, and returns the bytes after it. If p does not
// begin with a route, it returns false.
func ParseRoute(p []byte) (r Route, rest []byte, ok bool) {
	modulus, n := binary.Uvarint(p)
	if n <= 0 || modulus > ModulusMax {
		return r, nil, false
	}
	residue, m := binary.Uvarint(p[n:])
	if m <= 0 || residue >= modulus {
		return r, nil, false
	}
	return Route{uint32(modulus), uint32(residue)}, p[n+m:], true
}

// Check returns an ErrRoute if the route of a section or read differs from the replica's.
func (r Route) Check(of Route) error {
	if r == of {
		return nil
	}
	return fmt.Errorf("%w: %s, and the replica is of %s", ErrRoute, of, r)
}

// GrowsTo reports whether later equals r, or is a route that a shard of route r can get by splits.
// A split keeps the number of the shard and multiplies its modulus.
func (r Route) GrowsTo(later Route) bool {
	return r.Residue == later.Residue && later.Modulus%r.Modulus == 0
}
