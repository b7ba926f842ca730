package catalog

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/raftfsm/codec"
)

// Catalog is the state machine of the catalog's group.
type Catalog struct {
	// view is replaced by each command and by Restore, which raft calls one at a time. A reader
	// that loads it once sees the state between two commands.
	view atomic.Pointer[View]
}

var _ raft.BatchingFSM = (*Catalog)(nil)

// View is the catalog after one command. All readers share it, so nothing may change
// it.
type View struct {
	Applied uint64 `json:"-"` // index of the last command that it includes

	NextGroup      uint32               `json:"next_group"` // number of the next shard's group
	Keyspaces      map[string]Keyspace  `json:"keyspaces"`  // by name
	Nodes          map[string]Node      `json:"nodes"`      // by key
	Groups         map[uint32]Placement `json:"groups"`     // by number; the catalog's own group once it is placed
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

// New returns a catalog without keyspaces and nodes. Groups of keyspaces are numbered
// from 1; group 0 is the catalog's own.
func New() *Catalog {
	c := &Catalog{}
	v := &View{NextGroup: Group + 1, ClusterVersion: firstClusterVersion, Users: &Users{ByName: map[string]User{}}, changed: make(chan struct{})}
	v.ownMaps()
	c.view.Store(v)
	return c
}

// View returns the current view.
func (c *Catalog) View() *View { return c.view.Load() }

// Keyspaces returns the keyspaces by name, ascending.
func (c *Catalog) Keyspaces() []Keyspace { return c.View().KeyspacesByName() }

// Applied returns the index of the last command that View includes.
func (c *Catalog) Applied() uint64 { return c.View().Applied }

// Changed returns a channel that closes when the catalog's state differs from this
// view. Catalog.View returns the newer state by then. A command that changed nothing
// does not close it.
func (v *View) Changed() <-chan struct{} { return v.changed }

// beginPace is short because users wait for a new cluster.
const beginPace = 100 * time.Millisecond

// Pace returns the interval of a loop that acts on the catalog. It is the given interval, but at
// most beginPace while the cluster has not begun, that is, has no keyspaces.
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

// encoded returns the view's JSON. Each state has exactly one, because maps are encoded
// in the order of their keys.
func (v *View) encoded() []byte {
	body, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("raftfsm: a catalog without JSON: %v", err)) // strings, numbers and maps of them can always be encoded
	}
	return body
}

// Apply applies one command and returns a *Result. It panics with a *codec.EntryError
// if it cannot.
func (c *Catalog) Apply(entry *raft.Log) any {
	command, err := parseEntry(entry.Data)
	if err != nil {
		panic(&codec.EntryError{Index: entry.Index, Err: err})
	}
	was := c.View()
	next, result := was.After(command)
	next.Applied = entry.Index
	c.replace(was, next)
	return result
}

// ApplyBatch applies committed entries. It returns a *Result for each command and nil
// for each change of the group's members.
func (c *Catalog) ApplyBatch(entries []*raft.Log) []any {
	answers := make([]any, len(entries))
	for i, entry := range entries {
		if entry.Type == raft.LogCommand {
			answers[i] = c.Apply(entry)
			continue
		}
		next := *c.View()
		next.Applied = entry.Index
		c.view.Store(&next)
	}
	return answers
}

// replace publishes view in the place of old, and then wakes the readers that wait for a change.
// They then read the view.
func (c *Catalog) replace(old, view *View) {
	c.view.Store(view)
	if view.changed != old.changed {
		close(old.changed)
	}
}

// After returns the view after a command, and the result that Apply would return. It
// leaves v as it is, because readers hold it. It panics unless exactly one field of command is set.
func (v *View) After(command *Command) (*View, *Result) {
	change, err := command.change()
	if err != nil {
		panic(err)
	}
	next := *v
	next.ownMaps()
	result, changed := change.apply(&next)
	if changed {
		next.numberReplicas()
		next.changed = make(chan struct{})
		return &next, &result
	}
	same := *v
	return &same, &result
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
