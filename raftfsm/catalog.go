package raftfsm

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/engine"
)

// Catalog is the state machine of the group that knows the keyspaces.
type Catalog struct {
	state   atomic.Pointer[catalogState] // replaced whole by each command
	applied atomic.Uint64
}

var _ raft.FSM = (*Catalog)(nil)

// Keyspace is one named table of the catalog.
type Keyspace struct {
	Name       string   `json:"name"`
	Kind       string   `json:"kind"`
	Columns    []string `json:"columns"`
	Shards     int      `json:"shards"`
	FirstGroup uint32   `json:"first_group"` // its shards are groups FirstGroup … FirstGroup+Shards-1
}

type catalogState struct {
	NextGroup uint32              `json:"next_group"`
	Keyspaces map[string]Keyspace `json:"keyspaces"`
}

// CatalogCommand is one change; exactly one field is set.
type CatalogCommand struct {
	Create     *Keyspace        `json:"create,omitempty"` // FirstGroup is chosen when it is applied
	AddColumns *AddColumnsEntry `json:"add_columns,omitempty"`
}

// AddColumnsEntry adds those columns that the keyspace does not have.
type AddColumnsEntry struct {
	Keyspace string   `json:"keyspace"`
	Columns  []string `json:"columns"`
}

// CatalogResult is what Apply answers. Exists says that Create found a keyspace
// of the name, and Keyspace is that; Missing that there is none to add to;
// Full that the columns would be more than engine.ColumnsMax.
type CatalogResult struct {
	Keyspace              Keyspace
	Exists, Missing, Full bool
}

// NewCatalog returns a catalog without keyspaces. Their groups are numbered
// from 1: group 0 is the catalog's own.
func NewCatalog() *Catalog {
	c := &Catalog{}
	c.state.Store(&catalogState{NextGroup: 1})
	return c
}

// Keyspaces returns the keyspaces by name, ascending.
func (c *Catalog) Keyspaces() []Keyspace {
	s := c.state.Load()
	return slices.SortedFunc(maps.Values(s.Keyspaces), func(a, b Keyspace) int {
		return strings.Compare(a.Name, b.Name)
	})
}

// Applied returns the index of the last command that Keyspaces shows.
func (c *Catalog) Applied() uint64 { return c.applied.Load() }

// AppendCatalogEntry appends the log entry of a command to dst.
func AppendCatalogEntry(dst []byte, command *CatalogCommand) ([]byte, error) {
	body, err := json.Marshal(command)
	if err != nil {
		return nil, fmt.Errorf("cannot encode catalog command: %w", err)
	}
	dst = append(dst, entryVersion, entryCatalog, 0, 0, sectionCatalog)
	dst = append(binary.LittleEndian.AppendUint32(dst, uint32(len(body))), body...)
	return SealEntry(dst), nil
}

func parseCatalogEntry(entry []byte) (*CatalogCommand, error) {
	kind, _, sections, err := openEntry(entry)
	if err != nil {
		return nil, err
	}
	section, body, rest, err := nextSection(sections)
	if err != nil {
		return nil, err
	}
	if kind != entryCatalog || section != sectionCatalog || len(rest) > 0 {
		return nil, fmt.Errorf("%w: kind %d, section %d in the group of the catalog", errEntry, kind, section)
	}
	command := &CatalogCommand{}
	if err := strictJSON(body, command); err != nil {
		return nil, fmt.Errorf("%w: %w", errEntry, err)
	}
	if (command.Create == nil) == (command.AddColumns == nil) {
		return nil, fmt.Errorf("%w: a command must do one thing", errEntry)
	}
	return command, nil
}

func strictJSON(body []byte, into any) error {
	d := json.NewDecoder(strings.NewReader(string(body)))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if d.InputOffset() != int64(len(body)) {
		return fmt.Errorf("%d bytes after the JSON", int64(len(body))-d.InputOffset())
	}
	return nil
}

// Apply applies one command and answers a *CatalogResult. It panics with an
// *EntryError if it cannot.
func (c *Catalog) Apply(entry *raft.Log) any {
	command, err := parseCatalogEntry(entry.Data)
	if err != nil {
		panic(&EntryError{Index: entry.Index, Err: err})
	}
	next, result := c.state.Load().after(command)
	c.state.Store(next)
	c.applied.Store(entry.Index)
	return result
}

// after returns the state after a command. It changes nothing in place: readers
// hold s.
func (s *catalogState) after(command *CatalogCommand) (*catalogState, *CatalogResult) {
	name := ""
	if command.Create != nil {
		name = command.Create.Name
	} else {
		name = command.AddColumns.Keyspace
	}
	k, exists := s.Keyspaces[name]
	next := &catalogState{NextGroup: s.NextGroup, Keyspaces: maps.Clone(s.Keyspaces)}
	if next.Keyspaces == nil {
		next.Keyspaces = map[string]Keyspace{}
	}
	switch {
	case command.Create != nil && exists:
		return s, &CatalogResult{Keyspace: k, Exists: true}
	case command.Create != nil:
		k = *command.Create
		k.FirstGroup = s.NextGroup
		next.NextGroup += uint32(k.Shards)
	case !exists:
		return s, &CatalogResult{Missing: true}
	default:
		k.Columns = slices.Clone(k.Columns)
		for _, column := range command.AddColumns.Columns {
			if !slices.Contains(k.Columns, column) {
				k.Columns = append(k.Columns, column)
			}
		}
		if len(k.Columns) > engine.ColumnsMax {
			return s, &CatalogResult{Keyspace: s.Keyspaces[name], Full: true}
		}
	}
	next.Keyspaces[name] = k
	return next, &CatalogResult{Keyspace: k}
}

// Snapshot captures the catalog between two commands.
func (c *Catalog) Snapshot() (raft.FSMSnapshot, error) {
	return &catalogSnapshot{index: c.applied.Load(), state: c.state.Load()}, nil
}

type catalogSnapshot struct {
	index uint64
	state *catalogState
}

func (s *catalogSnapshot) Persist(sink raft.SnapshotSink) error {
	body, err := json.Marshal(s.state)
	if err != nil {
		return fmt.Errorf("cannot encode catalog: %w", err)
	}
	w := &streamWriter{w: bufio.NewWriter(sink)}
	if err := w.head(entryCatalog, s.index); err != nil {
		return err
	}
	if err := w.section(streamCatalog, func(b []byte) []byte { return append(b, body...) }); err != nil {
		return err
	}
	if err := w.end(uint64(len(s.state.Keyspaces)), 0); err != nil {
		return err
	}
	return sink.Close()
}

func (*catalogSnapshot) Release() {}

// Restore replaces the catalog by a snapshot's. On an error it stays what it
// was.
func (c *Catalog) Restore(snapshot io.ReadCloser) error {
	defer snapshot.Close()
	index, state, err := readCatalog(snapshot)
	if err != nil {
		return fmt.Errorf("cannot restore catalog: %w", err)
	}
	c.state.Store(state)
	c.applied.Store(index)
	return nil
}

func readCatalog(r io.Reader) (uint64, *catalogState, error) {
	s := &streamReader{r: bufio.NewReader(r)}
	index, err := s.head(entryCatalog)
	if err != nil {
		return 0, nil, err
	}
	kind, body, err := s.next()
	if err != nil {
		return 0, nil, err
	}
	state := &catalogState{}
	if kind != streamCatalog {
		return 0, nil, fmt.Errorf("%w: section kind %d", errSnapshot, kind)
	}
	if err := strictJSON(body, state); err != nil {
		return 0, nil, fmt.Errorf("%w: %w", errSnapshot, err)
	}
	if err := state.check(); err != nil {
		return 0, nil, err
	}
	kind, end, err := s.next()
	if err != nil {
		return 0, nil, err
	}
	if kind != streamEnd {
		return 0, nil, fmt.Errorf("%w: section kind %d", errSnapshot, kind)
	}
	return index, state, s.end(end, uint64(len(state.Keyspaces)), 0)
}

// check refuses a state that no commands make: a keyspace under another's name
// or without shards, or groups that NextGroup would give away again.
func (s *catalogState) check() error {
	if s.NextGroup < 1 {
		return fmt.Errorf("%w: next group %d", errSnapshot, s.NextGroup)
	}
	for name, k := range s.Keyspaces {
		behind := uint64(k.FirstGroup) + uint64(max(k.Shards, 0))
		if k.Name != name || k.Shards < 1 || k.FirstGroup < 1 || behind > uint64(s.NextGroup) || len(k.Columns) > engine.ColumnsMax {
			return fmt.Errorf("%w: keyspace %q: %+v", errSnapshot, name, k)
		}
	}
	return nil
}
