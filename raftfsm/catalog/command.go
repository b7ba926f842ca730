package catalog

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"reflect"

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
	SetLimits     *SetLimitsEntry     `json:"set_limits,omitempty"`

	Retire *RetireEntry `json:"retire,omitempty"`

	Drop       *DropEntry       `json:"drop,omitempty"`
	DropColumn *DropColumnEntry `json:"drop_column,omitempty"`

	Grow         *GrowEntry         `json:"grow,omitempty"`
	CommitSplit  *CommitSplitEntry  `json:"commit_split,omitempty"`
	AbandonSplit *AbandonSplitEntry `json:"abandon_split,omitempty"`
	ChildBegun   *ChildBegunEntry   `json:"child_begun,omitempty"`
	MarkExec     *MarkExecEntry     `json:"mark_exec,omitempty"`

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

func (e *RefusedError) Error() string { return e.Reason }

// change is one kind of command. apply may change the maps of v, but not the values in them,
// because other views share these values. It reports whether it changed anything; if not, the
// caller discards v.
type change interface {
	apply(v *View) (result Result, changed bool)
}

// change returns the field that is set. It fails unless exactly one is set.
func (c *Command) change() (only change, err error) {
	n := 0
	for _, field := range reflect.ValueOf(c).Elem().Fields() {
		if !field.IsNil() {
			only, n = field.Interface().(change), n+1
		}
	}
	if n != 1 {
		return nil, fmt.Errorf("%w: a command does one thing, not %d", codec.ErrEntry, n)
	}
	return only, nil
}

// AppendEntry appends the log entry of a command to dst. It refuses a command unless exactly one
// change is set, because no node could apply the command. For example, a command of a later program
// may decode to a command without a change.
func AppendEntry(dst []byte, command *Command) ([]byte, error) {
	body, err := json.Marshal(command)
	if err == nil {
		_, err = command.change()
	}
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
	_, err = command.change()
	return command, err
}
