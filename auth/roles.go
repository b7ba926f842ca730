package auth

import (
	"maps"
	"slices"

	"github.com/countd/countd/raftfsm/catalog"
)

// Access is the kind of access that a call needs.
type Access uint8

// The kinds of access. Nobody is the zero value, for a call without a Need.
const (
	Nobody Access = iota
	Public        // no token is needed
	Known         // any valid token is enough
	Read          // reads rows of keyspaces
	Ingest        // adds to rows of keyspaces, and returns the new counts
	Write         // changes rows of keyspaces in any way
	Status        // reads the state of the cluster and its metrics
	Admin         // changes the cluster, its keyspaces or its users, or copies data
)

// These are the places where a call names its keyspaces.
const (
	InNeed = iota // Need.Keyspaces names them
	InPath        // its path names one
	InBody        // its body, parameters or keys name the keyspaces; the server checks each
)

// Need is the access that a call needs. Nobody may make a call with the zero Need.
type Need struct {
	Access    Access
	In        int
	Keyspaces []string // the call needs access to each of them
}

// Need returns the need of a call that concerns no keyspace.
func (a Access) Need() Need { return Need{Access: a} }

// On returns the need of a call that uses these keyspaces.
func (a Access) On(keyspaces ...string) Need { return Need{Access: a, Keyspaces: keyspaces} }

// InPath returns the need of a call whose path names its keyspace.
func (a Access) InPath() Need { return Need{Access: a, In: InPath} }

// InBody returns the need of a call whose body, parameters or keys name its keyspaces.
func (a Access) InBody() Need { return Need{Access: a, In: InBody} }

type accesses uint16

func setOf(all ...Access) (s accesses) {
	for _, a := range all {
		s |= 1 << a
	}
	return s
}

func (s accesses) has(a Access) bool { return s&(1<<a) != 0 }

// names returns the names of the accesses in s.
func (s accesses) names() []string {
	names := []string{}
	for i, name := range []string{"read", "ingest", "write", "status", "admin"} {
		if s.has(Read + Access(i)) {
			names = append(names, name)
		}
	}
	return names
}

// roles are the roles that grants may name.
var roles = map[string]accesses{
	"reader":  setOf(Read),
	"ingest":  setOf(Ingest),
	"writer":  setOf(Read, Ingest, Write),
	"metrics": setOf(Status),
	"admin":   setOf(Read, Ingest, Write, Status, Admin),
}

// Roles returns the names of the roles.
func Roles() []string { return slices.Sorted(maps.Keys(roles)) }

// ofCluster reports whether a role concerns the cluster and not keyspaces.
func ofCluster(role string) bool { return roles[role].has(Status) }

// rights are what the grants of a user allow. They never change.
type rights struct {
	all accesses            // on every keyspace and the cluster
	on  map[string]accesses // by keyspace
	any accesses            // on some keyspace or the cluster
}

var rootRights = rightsOf([]catalog.Grant{{Role: "admin", Keyspaces: []string{catalog.AllKeyspaces}}})

// cover reports whether r allows everything that other allows.
func (r *rights) cover(other *rights) bool {
	for name, on := range other.on {
		if on&^(r.all|r.on[name]) != 0 {
			return false
		}
	}
	return other.all&^r.all == 0
}

// rightsOf combines grants. A role that this version of the program does not know grants nothing.
func rightsOf(grants []catalog.Grant) *rights {
	r := &rights{on: map[string]accesses{}}
	for _, g := range grants {
		for _, name := range g.Keyspaces {
			if name == catalog.AllKeyspaces {
				r.all |= roles[g.Role]
			} else if !ofCluster(g.Role) {
				r.on[name] |= roles[g.Role]
			}
		}
	}
	r.any = r.all
	for _, on := range r.on {
		r.any |= on
	}
	return r
}
