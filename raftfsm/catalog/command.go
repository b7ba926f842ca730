package catalog

import (
	"encoding/binary"
	"encoding/json"
	"fmt"

	"github.com/countd/countd/raftfsm/codec"
)

// Command is one change; exactly one field is set.
type Command struct {
	Create       *CreateEntry       `json:"create,omitempty"`
	AddColumns   *AddColumnsEntry   `json:"add_columns,omitempty"`
	PutNode      *PutNodeEntry      `json:"put_node,omitempty"`
	SetNodeState *SetNodeStateEntry `json:"set_node_state,omitempty"`
	RemoveNode   *RemoveNodeEntry   `json:"remove_node,omitempty"`
	Place        *PlaceEntry        `json:"place,omitempty"`
	SetVersion   *SetVersionEntry   `json:"set_version,omitempty"`
	HoldVersion  *HoldVersionEntry  `json:"hold_version,omitempty"`

	SetEverywhere *SetEverywhereEntry `json:"set_everywhere,omitempty"`

	Number *NumberEntry `json:"number,omitempty"`
	Retire *RetireEntry `json:"retire,omitempty"`

	Drop       *DropEntry       `json:"drop,omitempty"`
	DropColumn *DropColumnEntry `json:"drop_column,omitempty"`
}

// Result is what Apply answers. A command whose result says anything but
// Keyspace has changed nothing.
type Result struct {
	Keyspace Keyspace // of Create, AddColumns and DropColumn: as it now is; of Drop: as it was
	Exists   bool     // Create: there is a keyspace of the name
	Missing  bool     // there is no keyspace, column or node to change
	Full     bool     // AddColumns: they would be more than engine.ColumnsMax
	Refused  string   // why the command does not fit the catalog, for people; "" if it does
	Bound    Bound    // Create: the bound that it would pass, with Refused set; "" for none
}

// Bound names a bound of a whole cluster.
type Bound string

// The bounds that Result tells of.
const (
	BoundKeyspaces Bound = "keyspaces" // KeyspacesMax
	BoundGroups    Bound = "groups"    // GroupsMax
)

func refused(format string, args ...any) (Result, bool) {
	return Result{Refused: fmt.Sprintf(format, args...)}, false
}

func pastBound(bound Bound, format string, args ...any) (Result, bool) {
	return Result{Refused: fmt.Sprintf(format, args...), Bound: bound}, false
}

// changes lists what the command may do, in the order of its fields.
func (c *Command) changes() []change {
	var all []change
	add := func(set bool, change change) {
		if set {
			all = append(all, change)
		}
	}
	add(c.Create != nil, c.Create)
	add(c.AddColumns != nil, c.AddColumns)
	add(c.PutNode != nil, c.PutNode)
	add(c.SetNodeState != nil, c.SetNodeState)
	add(c.RemoveNode != nil, c.RemoveNode)
	add(c.Place != nil, c.Place)
	add(c.SetVersion != nil, c.SetVersion)
	add(c.HoldVersion != nil, c.HoldVersion)
	add(c.SetEverywhere != nil, c.SetEverywhere)
	add(c.Number != nil, c.Number)
	add(c.Retire != nil, c.Retire)
	add(c.Drop != nil, c.Drop)
	add(c.DropColumn != nil, c.DropColumn)
	return all
}

// change is one kind of command. apply may write the maps of v but no
// value in them, which other views share, and reports whether it changed
// anything. If not, v is thrown away.
type change interface {
	apply(v *View) (result Result, changed bool)
}

func (c *Command) apply(v *View) (Result, bool) {
	return c.changes()[0].apply(v) // parseCatalogEntry has seen that there is one
}

// AppendEntry appends the log entry of a command to dst. A command that does
// not do one thing, such as one of a later program, of which nothing that is known
// here is left, is refused: no node could apply it.
func AppendEntry(dst []byte, command *Command) ([]byte, error) {
	if err := command.check(); err != nil {
		return nil, fmt.Errorf("cannot encode catalog command: %w", err)
	}
	body, err := json.Marshal(command)
	if err != nil {
		return nil, fmt.Errorf("cannot encode catalog command: %w", err)
	}
	dst = append(codec.BeginEntry(dst, codec.KindCatalog, 0), codec.SectionCatalog)
	dst = append(binary.LittleEndian.AppendUint32(dst, uint32(len(body))), body...)
	return codec.AppendChecksum(dst), nil
}

func parseEntry(entry []byte) (*Command, error) {
	kind, _, sections, err := codec.OpenEntry(entry)
	if err != nil {
		return nil, err
	}
	section, body, rest, err := codec.NextSection(sections)
	if err != nil {
		return nil, err
	}
	if kind != byte(codec.KindCatalog) || section != codec.SectionCatalog || len(rest) > 0 {
		return nil, fmt.Errorf("%w: kind %d, section %d in the group of the catalog", codec.ErrEntry, kind, section)
	}
	command := &Command{}
	if err := codec.DecodeJSON(body, command); err != nil {
		return nil, fmt.Errorf("%w: %w", codec.ErrEntry, err)
	}
	return command, command.check()
}

// check refuses a command that does not do one thing.
func (c *Command) check() error {
	if n := len(c.changes()); n != 1 {
		return fmt.Errorf("%w: a command does one thing, not %d", codec.ErrEntry, n)
	}
	return nil
}
