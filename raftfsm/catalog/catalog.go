package catalog

import (
	"sync/atomic"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/raftfsm/codec"
)

// Catalog is the state machine of the catalog's group.
type Catalog struct {
	// Each command replaces view, and so does Restore. raft makes only one of these calls at a
	// time. A reader that loads view once sees the state between two commands.
	view atomic.Pointer[View]
}

var _ raft.BatchingFSM = (*Catalog)(nil)

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

// Apply applies one command and returns a *Result. It panics with a *codec.EntryError if it cannot
// apply the command.
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

// replace publishes view in place of old, and then wakes the readers that wait for a change, so
// that they see the new view.
func (c *Catalog) replace(old, view *View) {
	c.view.Store(view)
	if view.changed != old.changed {
		close(old.changed)
	}
}

// After returns the view after a command, and the result that Apply would return. It does not
// change v, because readers still use v. It panics unless exactly one field of command is set.
func (v *View) After(command *Command) (*View, *Result) {
	change, err := command.change()
	if err != nil {
		panic(err)
	}
	apply := change.apply
	if command.ofGrowth() && !v.TakesGrowth() {
		apply = command.refusedByVersion
	}
	next := *v
	next.ownMaps()
	result, changed := apply(&next)
	if changed {
		next.numberReplicas()
		next.changed = make(chan struct{})
		return &next, &result
	}
	same := *v
	return &same, &result
}
