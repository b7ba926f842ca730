package bulk

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/countd/countd/client"
)

const fileStateVersion = 1

// ErrBadFileState is returned for a progress file that this program did not write.
var ErrBadFileState = errors.New("not a progress file of countctl import")

// The kinds of a FileState.
const (
	KindSet    = ""       // rows are values
	KindAdd    = "add"    // rows are increments
	KindEvents = "events" // each row is an event, which adds 1 to a column

	KindMembers = "members" // each row has a member, which is added to a set
	KindCopied  = "members without counting"
)

// FileState is the content of a progress file: the source of the import, its target and its
// progress.
type FileState struct {
	Version  int      `json:"version"`
	Kind     string   `json:"kind,omitempty"`
	Input    Identity `json:"input"`
	Addr     string   `json:"addr"`    // address of the server, for a person to read
	Cluster  string   `json:"cluster"` // id of the cluster at that address
	Keyspace string   `json:"keyspace"`
	// FirstGroup is the number of the keyspace's first Raft group. A keyspace that is dropped and
	// created again has another number. FirstGroup is 0 if the server did not report the number.
	FirstGroup uint32       `json:"first_group,omitempty"`
	IDColumn   string       `json:"id_column"`
	Events     EventColumns `json:"events,omitzero"` // columns of the file for KindEvents, where Columns maps events instead of columns
	Format     Format       `json:"format,omitzero"`
	Map        []string     `json:"map,omitempty"` // values of --map, from which Columns was made
	Columns    []Column     `json:"columns"`
	// Numbers has, for each element of Columns, the number of the column in the keyspace, or -1 for
	// an event that changes no column. A column that is dropped and created again has another
	// number.
	Numbers  []int    `json:"column_numbers,omitempty"`
	Position Position `json:"position"`
	Rejects  string   `json:"rejects,omitempty"` // file of the rejected rows, if there is one
	Session  *Session `json:"session,omitempty"` // session of an import of increments; nil for other kinds
	// Fence is the fence of all runs that have written absolute values with this progress file.
	Fence Fence `json:"fence,omitzero"`
	// Overflows describes the rows up to Position whose sum did not fit an int64, so that a later
	// run reports them too.
	Overflows Overflows `json:"overflows,omitzero"`
}

// Format describes how to read the file. It decides which rows are bad.
type Format struct {
	Delimiter   string `json:"delimiter,omitempty"`     // "" for a comma
	EmptyAsZero bool   `json:"empty_as_zero,omitempty"` // an empty field of a count is read as 0
}

// Session describes how a file is divided into numbered batches. Each batch is added once, even if
// it is sent several times. All runs until the file is done use the same session, whatever their
// flags.
type Session struct {
	Producer  string `json:"producer"`
	Seq       uint64 `json:"seq"`        // number of the batch that begins after Position; all batches with lower numbers are added
	BatchRows int    `json:"batch_rows"` // maximum number of rows of a batch
	// TickSeconds is the length of a period, by the times in the file. No batch has rows of two
	// periods. It is 0 in a session that began at full speed, because such a session needs no
	// times. BatchRows and TickSeconds determine the rows of each batch, so a later run at another
	// speed uses the same values.
	TickSeconds float64 `json:"tick_seconds,omitempty"`
	Done        bool    `json:"done,omitempty"`
}

// Begin returns the state of a new import. earlier is the state in the progress file that the new
// import replaces, or zero. Begin keeps that state's Fence, because writes of the earlier import
// may still be in flight.
func (s FileState) Begin(earlier FileState) FileState {
	s.Version, s.Fence = fileStateVersion, earlier.Fence
	return s
}

// Adds reports whether rows are increments.
func (s FileState) Adds() bool { return s.Kind == KindAdd || s.Kind == KindEvents }

// OfMembers reports whether rows are members. In that case Columns has one element. Its File is the
// column of the file with the members, and its Counter is the column of the keyspace with the sets.
func (s *FileState) OfMembers() bool { return s.Kind == KindMembers || s.Kind == KindCopied }

// BeginSession returns the state of a new import of increments. Its session has a new producer
// name.
func (s FileState) BeginSession(batchRows int, tickSeconds float64) FileState {
	s = s.Begin(FileState{})
	s.Session = &Session{Producer: client.NewProducer(), Seq: 1, BatchRows: batchRows, TickSeconds: tickSeconds}
	return s
}

// Summary returns the result of all runs so far.
func (s FileState) Summary() Summary {
	return progress{position: s.Position, overflows: s.Overflows}.summary()
}

// SameImport reports whether s and other belong to the same import, whatever their progress.
func (s FileState) SameImport(other FileState) bool { return len(s.Differences(other)) == 0 }

// Differences returns descriptions of the parts in which s differs from other, the import that is
// to run. It returns none if both are the same import. A cluster is identified by its id or, if it
// has none, by its address.
func (s FileState) Differences(other FileState) []string {
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
	case s.Input != other.Input:
		parts = append(parts, "the file's content")
	}
	if s.Addr == other.Addr {
		note(s.Cluster != other.Cluster, "the cluster at "+s.Addr, s.Cluster, other.Cluster)
	} else {
		note(s.Cluster != other.Cluster || s.Cluster == "", "the server", s.Addr, other.Addr)
	}
	note(s.Keyspace != other.Keyspace, "--keyspace", s.Keyspace, other.Keyspace)
	if s.madeAgain(other) {
		parts = append(parts, "the keyspace, which was dropped and made again")
	}
	note(s.IDColumn != other.IDColumn, "--id-column", s.IDColumn, other.IDColumn)
	note(s.Events.Event != other.Events.Event, "--event-column", s.Events.Event, other.Events.Event)
	note(s.Events.Time != other.Events.Time, "--time-column", s.Events.Time, other.Events.Time)
	note(s.Format.Delimiter != other.Format.Delimiter, "--delimiter", cmp.Or(s.Format.Delimiter, ","), cmp.Or(other.Format.Delimiter, ","))
	note(s.Format.EmptyAsZero != other.Format.EmptyAsZero, "--empty-as-zero", s.Format.EmptyAsZero, other.Format.EmptyAsZero)
	if s.mapsOtherwise(other) {
		note(true, "--map or the keyspace's columns", mapping(s.Columns), mapping(other.Columns))
	}
	return parts
}

// madeAgain reports whether s and other have the same keyspace, but it was dropped and created
// again in between.
func (s FileState) madeAgain(other FileState) bool {
	return s.Keyspace == other.Keyspace && s.Cluster == other.Cluster && s.FirstGroup != 0 && other.FirstGroup != 0 && s.FirstGroup != other.FirstGroup
}

// MadeAgain reports whether s and other are the same import, except that the keyspace was
// dropped and created again.
func (s FileState) MadeAgain(other FileState) bool {
	again := s.madeAgain(other)
	s.FirstGroup = other.FirstGroup
	return again && s.SameImport(other)
}

// mapsOtherwise reports whether other, the import that is to run, maps columns in another way. A
// session keeps the columns with which it began, even if the columns of the keyspace change: they
// decide which rows are bad, and so where cuts end. An import of values starts over instead,
// because it may write a row twice.
func (s FileState) mapsOtherwise(other FileState) bool {
	if s.Adds() {
		return !slices.Equal(slices.Sorted(slices.Values(s.Map)), slices.Sorted(slices.Values(other.Map))) && !slices.Equal(s.Columns, other.Columns)
	}
	return !slices.Equal(s.Columns, other.Columns) || !slices.Equal(s.Numbers, other.Numbers)
}

func kindName(kind string) string {
	if kind == KindSet {
		return "values"
	}
	return kind
}

// mapping formats columns like a value of --map.
func mapping(columns []Column) string {
	pairs := make([]string, len(columns))
	for i, c := range columns {
		pairs[i] = c.File + "=" + c.Counter
	}
	return strings.Join(pairs, ",")
}

// ReadFileState reads a progress file; exists is false if there is none.
func ReadFileState(path string) (s FileState, exists bool, err error) {
	return readProgress(path, decodeFileState)
}

func decodeFileState(text []byte) (FileState, error) {
	var s FileState
	if err := json.Unmarshal(text, &s); err != nil {
		return FileState{}, ErrBadFileState
	}
	if s.Version != fileStateVersion || s.Position.Line < 0 || s.Position.Rows < 0 || s.Position.Rejected < 0 ||
		s.Position.Rows > s.Position.Line || s.Position.Rejected > s.Position.Line || !s.Overflows.valid(s.Position.Rows) {
		return FileState{}, ErrBadFileState
	}
	if len(s.Numbers) > 0 && len(s.Numbers) != len(s.Columns) {
		return FileState{}, ErrBadFileState
	}
	if (s.Session != nil) != s.Adds() || s.Session != nil && !s.Session.valid() {
		return FileState{}, ErrBadFileState
	}
	return s, nil
}

func (s *Session) valid() bool {
	return s.Producer != "" && s.Seq > 0 && s.BatchRows > 0 && s.BatchRows <= client.WriteOpsMax && s.TickSeconds >= 0
}

func (s FileState) write(path string) error { return writeProgress(path, s) }

// errTaken is returned if the progress file now has another session.
var errTaken = errors.New("the progress file is another session's by now")

// writeOwn replaces the progress file of the session, or creates it. If the file has another
// session, writeOwn returns errTaken.
func (s FileState) writeOwn(path string) error {
	there, found, err := ReadFileState(path)
	switch {
	case err != nil:
		return err
	case !found:
		return s.create(path)
	case there.Session == nil || there.Session.Producer != s.Session.Producer:
		return fmt.Errorf("%w: %s", errTaken, path)
	}
	return s.write(path)
}

func (s FileState) create(path string) error {
	err := createProgress(path, s)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%w: %s", errTaken, path)
	}
	return err
}
