package catalog

import (
	"encoding/binary"
	"encoding/json"
	"fmt"

	"github.com/countd/countd/raftfsm/codec"
)

// Command is one change. Exactly one field is set.
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

	Retire *RetireEntry `json:"retire,omitempty"`

	Drop       *DropEntry       `json:"drop,omitempty"`
	DropColumn *DropColumnEntry `json:"drop_column,omitempty"`

	PutSource    *PutSourceEntry    `json:"put_source,omitempty"`
	PauseSource  *PauseSourceEntry  `json:"pause_source,omitempty"`
	DeleteSource *DeleteSourceEntry `json:"delete_source,omitempty"`
	SeekSource   *SeekSourceEntry   `json:"seek_source,omitempty"`
	StartSource  *StartSourceEntry  `json:"start_source,omitempty"`
	RejectSource *RejectSourceEntry `json:"reject_source,omitempty"`

	PutUser     *PutUserEntry     `json:"put_user,omitempty"`
	DeleteUser  *DeleteUserEntry  `json:"delete_user,omitempty"`
	AddToken    *AddTokenEntry    `json:"add_token,omitempty"`
	RemoveToken *RemoveTokenEntry `json:"remove_token,omitempty"`
}

// Result is the answer of Apply. A command whose result has anything but Keyspace, Source or
// User set changed nothing.
type Result struct {
	Keyspace Keyspace // Create, AddColumns, DropColumn: after the command; Drop: before it
	Source   Source   // after the command of a source; DeleteSource: before it
	User     User     // after the command of a user; DeleteUser: before it
	Exists   bool     // Create, PutSource: there is one of this name; commands with the version of a source: it has another; AddToken: there was a token of this number; PutUser: the user is not as Was
	Missing  bool     // there is no such keyspace, column, node, source, user or token
	Full     bool     // AddColumns: the keyspace would have more than engine.ColumnsMax
	Refused  string   // why the command does not fit the catalog, for people; "" if it fits
	Bound    Bound    // Create, commands of sources and users: the bound that the command would exceed, with Refused set; "" for none
}

// Bound names a bound of a whole cluster.
type Bound string

// The bounds that Result.Bound names.
const (
	BoundKeyspaces  Bound = "keyspaces"  // KeyspacesMax
	BoundGroups     Bound = "groups"     // GroupsMax
	BoundSources    Bound = "sources"    // SourcesMax
	BoundPartitions Bound = "partitions" // PartitionsMax
	BoundUsers      Bound = "users"      // UsersMax
	BoundTokens     Bound = "tokens"     // UserTokensMax
)

func refused(format string, args ...any) (Result, bool) {
	return Result{Refused: fmt.Sprintf(format, args...)}, false
}

func pastBound(bound Bound, format string, args ...any) (Result, bool) {
	return Result{Refused: fmt.Sprintf(format, args...), Bound: bound}, false
}

// changes returns the fields that are set, in their order.
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
	add(c.Retire != nil, c.Retire)
	add(c.Drop != nil, c.Drop)
	add(c.DropColumn != nil, c.DropColumn)
	add(c.PutSource != nil, c.PutSource)
	add(c.PauseSource != nil, c.PauseSource)
	add(c.DeleteSource != nil, c.DeleteSource)
	add(c.SeekSource != nil, c.SeekSource)
	add(c.StartSource != nil, c.StartSource)
	add(c.RejectSource != nil, c.RejectSource)
	add(c.PutUser != nil, c.PutUser)
	add(c.DeleteUser != nil, c.DeleteUser)
	add(c.AddToken != nil, c.AddToken)
	add(c.RemoveToken != nil, c.RemoveToken)
	return all
}

// change is one kind of command. apply may write the maps of v, but must not change the
// values in them, which other views share. It reports whether it changed anything; if
// not, the caller discards v.
type change interface {
	apply(v *View) (result Result, changed bool)
}

// AppendEntry appends the log entry of a command to dst. It refuses a command without
// exactly one change: no node could apply that. A command of a later program, decoded
// here, has none.
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

// check returns an error unless exactly one field is set.
func (c *Command) check() error {
	if n := len(c.changes()); n != 1 {
		return fmt.Errorf("%w: a command does one thing, not %d", codec.ErrEntry, n)
	}
	return nil
}
