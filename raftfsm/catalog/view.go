package catalog

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"time"
)

// View is the catalog after one command. All readers share it, so nothing may change
// it.
type View struct {
	Applied uint64 `json:"-"` // index of the last command that the view includes

	NextGroup      uint32               `json:"next_group"` // number of the next shard's group
	Keyspaces      map[string]Keyspace  `json:"keyspaces"`  // by name
	Nodes          map[string]Node      `json:"nodes"`      // by key
	Groups         map[uint32]Placement `json:"groups"`     // by number; contains the catalog's own group once it is placed
	ClusterVersion int                  `json:"cluster_version"`
	VersionHeld    bool                 `json:"version_held"` // ClusterVersion must not change

	LastSource uint32 `json:"last_source,omitempty"` // the highest number given to a source
	// SourceVersion is the highest version that a source has had.
	SourceVersion uint64            `json:"source_version,omitempty"`
	Sources       map[string]Source `json:"sources,omitempty"` // by name

	Users *Users `json:"users"`

	changed chan struct{} // closed when a view with another state replaces this one
}

const firstClusterVersion = 1

// Changed returns a channel that is closed once Catalog.View returns a view with another state. A
// command without an effect does not close it.
func (v *View) Changed() <-chan struct{} { return v.changed }

// beginPace is short because users wait for a new cluster.
const beginPace = 100 * time.Millisecond

// Pace returns the interval of a loop that acts on the catalog. It returns the given interval.
// While the cluster has no keyspaces, it returns at most beginPace.
func (v *View) Pace(interval time.Duration) time.Duration {
	if len(v.Keyspaces) == 0 {
		return min(interval, beginPace)
	}
	return interval
}

// KeyspacesByName returns the keyspaces by name, ascending.
func (v *View) KeyspacesByName() []Keyspace { return byName(v.Keyspaces) }

func byName[T any](m map[string]T) []T {
	all := make([]T, 0, len(m))
	for _, name := range slices.Sorted(maps.Keys(m)) {
		all = append(all, m[name])
	}
	return all
}

// Digest returns an FNV-1a hash of the view's JSON. Equal views have equal digests,
// whatever commands made them.
func (v *View) Digest() uint64 {
	h := fnv.New64a()
	_, _ = h.Write(v.encoded()) // a write to a hash never fails
	return h.Sum64()
}

// encoded returns the view's JSON. Each state has exactly one encoding, because maps are encoded in
// the order of their keys.
func (v *View) encoded() []byte {
	body, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("raftfsm: a catalog without JSON: %v", err)) // JSON can always encode strings, numbers and maps of them
	}
	return body
}

// ownMaps replaces the maps by copies that no other view shares.
func (v *View) ownMaps() {
	v.Keyspaces, v.Nodes, v.Groups = owned(v.Keyspaces), owned(v.Nodes), owned(v.Groups)
	v.Sources = owned(v.Sources)
}

func owned[K comparable, V any](m map[K]V) map[K]V {
	if m == nil {
		return map[K]V{}
	}
	return maps.Clone(m)
}
