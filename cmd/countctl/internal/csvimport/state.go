package csvimport

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/countd/countd/client"
	"github.com/countd/countd/cmd/countctl/internal/csvfile"
	"github.com/countd/countd/cmd/countctl/internal/progressfile"
)

const stateVersion = 1

// ErrBadState is returned for a progress file that this program did not write.
var ErrBadState = errors.New("not a progress file of countctl import")

// The kinds of State.
const (
	KindSet    = ""       // rows are values
	KindAdd    = "add"    // rows are increments
	KindEvents = "events" // a row is an event, which adds 1

	KindMembers = "members" // a row is a member of a set, which joins it
	KindCopied  = "members without counting"
)

// State is the progress file of an import: the source, the target and the progress.
type State struct {
	Version  int              `json:"version"`
	Kind     string           `json:"kind,omitempty"`
	Input    csvfile.Identity `json:"input"`
	Addr     string           `json:"addr"`    // of the server, for a person to read
	Cluster  string           `json:"cluster"` // id of the cluster that the address led to
	Keyspace string           `json:"keyspace"`
	IDColumn string           `json:"id_column"`
	Events   EventColumns     `json:"events,omitzero"` // of KindEvents, whose Columns map events
	Columns  []Column         `json:"columns"`
	Position Position         `json:"position"`
	Rejects  string           `json:"rejects,omitempty"` // file of the rejected rows, if there is one
	Session  *Session         `json:"session,omitempty"` // of increments
	// Overflows are those of the rows in Position, so that a later run reports them too.
	Overflows Overflows `json:"overflows,omitzero"`
}

// Session is the way in which a file is cut into numbered batches, so that each batch is
// added once even if it is sent several times. It stays the same until the file is done,
// whatever the flags of a later run are.
type Session struct {
	Producer  string `json:"producer"`
	Seq       uint64 `json:"seq"`        // of the batch that begins after Position; lower ones are added
	BatchRows int    `json:"batch_rows"` // maximum number of rows of a batch
	// TickSeconds is a period on the file's clock; a batch does not extend beyond it. It is
	// 0 in a session that began at full speed, where rows need no time. Both fields
	// determine the content of batches, so a later run at another speed keeps them.
	TickSeconds float64 `json:"tick_seconds,omitempty"`
	Done        bool    `json:"done,omitempty"`
}

// Begin describes an import that has not begun: s without a place.
func (s State) Begin() State {
	s.Version, s.Position, s.Rejects, s.Session, s.Overflows = stateVersion, Position{}, "", nil, Overflows{}
	return s
}

// BeginSession describes one whose increments have not begun, under a name that
// was never used.
func (s State) BeginSession(batchRows int, tickSeconds float64) State {
	s = s.Begin()
	s.Session = &Session{Producer: client.NewProducer(), Seq: 1, BatchRows: batchRows, TickSeconds: tickSeconds}
	return s
}

// Summary returns the result of all runs so far.
func (s State) Summary() Summary {
	return progress{position: s.Position, overflows: s.Overflows}.summary()
}

// SameImport reports whether both belong to the same import, whatever their progress.
func (s State) SameImport(other State) bool { return len(s.Differences(other)) == 0 }

// Differences returns the parts in which s differs from other, the present import; none if
// both are the same import. A new cluster at the same address differs; a cluster without an
// id is identified by its address.
func (s State) Differences(other State) []string {
	var parts []string
	note := func(differ bool, what string, was, is any) {
		if differ {
			parts = append(parts, fmt.Sprintf("%s (%v, was %v)", what, is, was))
		}
	}
	note(s.Kind != other.Kind, "what rows are", kindName(s.Kind), kindName(other.Kind))
	switch {
	case s.Input.Size != other.Input.Size:
		note(true, "the file's size", fmt.Sprint(s.Input.Size, " bytes"), fmt.Sprint(other.Input.Size, " bytes"))
	case !s.Input.Same(other.Input):
		parts = append(parts, "the file's content")
	}
	if s.Addr == other.Addr {
		note(s.Cluster != other.Cluster, "the cluster at "+s.Addr, s.Cluster, other.Cluster)
	} else {
		note(s.Cluster != other.Cluster || s.Cluster == "", "the server", s.Addr, other.Addr)
	}
	note(s.Keyspace != other.Keyspace, "--keyspace", s.Keyspace, other.Keyspace)
	note(s.IDColumn != other.IDColumn, "--id-column", s.IDColumn, other.IDColumn)
	note(s.Events.Event != other.Events.Event, "--event-column", s.Events.Event, other.Events.Event)
	note(s.Events.Time != other.Events.Time, "--time-column", s.Events.Time, other.Events.Time)
	note(!slices.Equal(s.Columns, other.Columns), "--map or the keyspace's columns", mapping(s.Columns), mapping(other.Columns))
	return parts
}

func kindName(kind string) string {
	if kind == KindSet {
		return "values"
	}
	return kind
}

// mapping formats columns like --map.
func mapping(columns []Column) string {
	pairs := make([]string, len(columns))
	for i, c := range columns {
		pairs[i] = c.File + "=" + c.Counter
	}
	return strings.Join(pairs, ",")
}

// ReadState reads a progress file; found is false if there is none.
func ReadState(path string) (s State, found bool, err error) {
	return progressfile.Read(path, decodeState)
}

func decodeState(text []byte) (State, error) {
	var s State
	if err := json.Unmarshal(text, &s); err != nil {
		return State{}, ErrBadState
	}
	if s.Version != stateVersion || s.Position.Line < 0 || s.Position.Rows < 0 || s.Position.Rejected < 0 ||
		s.Position.Rows > s.Position.Line || s.Position.Rejected > s.Position.Line || !s.Overflows.valid(s.Position.Rows) {
		return State{}, ErrBadState
	}
	if (s.Session != nil) != (s.Kind == KindAdd || s.Kind == KindEvents) || s.Session != nil && !s.Session.valid() {
		return State{}, ErrBadState
	}
	return s, nil
}

func (s *Session) valid() bool {
	return s.Producer != "" && s.Seq > 0 && s.BatchRows > 0 && s.BatchRows <= client.WriteOpsMax && s.TickSeconds >= 0
}

// write replaces the progress file.
func (s State) write(path string) error { return progressfile.Write(path, s) }

// ErrTaken is returned if another session has taken over the progress file.
var ErrTaken = errors.New("the progress file is another session's by now")

// writeOwn replaces the progress file of the session, or creates it.
func (s State) writeOwn(path string) error {
	there, found, err := ReadState(path)
	switch {
	case err != nil:
		return err
	case !found:
		return s.create(path)
	case there.Session == nil || there.Session.Producer != s.Session.Producer:
		return fmt.Errorf("%w: %s", ErrTaken, path)
	}
	return s.write(path)
}

// create creates the progress file of a new session.
func (s State) create(path string) error {
	err := progressfile.Create(path, s)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%w: %s", ErrTaken, path)
	}
	return err
}
