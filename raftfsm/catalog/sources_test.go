package catalog

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/source/sink"
)

const aConfig = `{"type":"nats"}`

// putSource returns the command that creates a source, or replaces the configuration of the source
// with that version.
func putSource(name, config string, version uint64) *Command {
	return &Command{PutSource: &PutSourceEntry{Name: name, Config: json.RawMessage(config), Version: version, Cluster: 7}}
}

// newMeaning returns the command that gives the messages of a source another meaning. All shards
// are at one position of partition 3.
func newMeaning(name string, version, at uint64) *Command {
	c := putSource(name, aConfig, version)
	c.PutSource.NewMeaning = true
	c.PutSource.Positions = map[uint32]sink.Position{3: {Lo: at}}
	return c
}

func pause(name string, version uint64, paused bool) *Command {
	return &Command{PauseSource: &PauseSourceEntry{Name: name, Version: version, Paused: paused}}
}

func seek(name string, version uint64, partition uint32, to uint64) *Command {
	return &Command{SeekSource: &SeekSourceEntry{Name: name, Version: version, Positions: map[uint32]sink.Position{partition: {Lo: to}}}}
}

func start(number uint64, partition uint32, from uint64, identity string) *Command {
	return &Command{StartSource: &StartSourceEntry{Number: number, Starts: map[uint32]sink.Position{partition: {Lo: from}}, Identity: identity}}
}

func deleteSource(name string, version uint64) *Command {
	return &Command{DeleteSource: &DeleteSourceEntry{Name: name, Version: version}}
}

const (
	first  = 7<<32 | 1
	second = 7<<32 | 2
)

// sourceSteps returns a command of each kind for sources.
func sourceSteps() (steps []struct {
	name    string
	command *Command
}) {
	for _, command := range []*Command{
		putSource("likes", ` { "type" : "nats" } `, 0), start(first, 3, 10, "q1"), pause("likes", 2, true), seek("likes", 3, 3, 5),
		start(first, 3, 9, "q2"), putSource("likes", `{"type":"<>"}`, 5), deleteSource("likes", 6),
	} {
		steps = append(steps, struct {
			name    string
			command *Command
		}{"source", command})
	}
	return steps
}

func TestSources(t *testing.T) {
	c := New()
	applyCommand(t, c, putNode(aNode("a.1", ClusterVersionMax), ""))
	partition := func(number uint64, want Partition) func(*Result) string {
		return func(*Result) string {
			s, _ := c.View().Source(number)
			got := s.Partitions[3]
			got.RejectedTo = sink.Position{} // TestRejected checks RejectedTo
			if got != want {
				return fmt.Sprintf("partition %+v, want %+v", got, want)
			}
			return ""
		}
	}
	made := func(number uint64) func(*Result) string {
		return func(r *Result) string {
			if r.Source.Number != number || string(r.Source.Config) != aConfig {
				return fmt.Sprintf("made %+v, want number %d", r.Source, number)
			}
			return ""
		}
	}
	refusal := func(r *Result) string {
		if r.Refused == "" {
			return "was not refused"
		}
		return ""
	}
	missing := func(r *Result) string {
		if !r.Missing {
			return "is not missing"
		}
		return ""
	}
	exists := func(r *Result) string {
		if !r.Exists {
			return "does not exist"
		}
		return ""
	}
	for i, step := range []struct {
		command *Command
		check   func(*Result) string
	}{
		{putSource("Likes", aConfig, 0), refusal},
		{putSource("likes", "[]", 0), refusal},
		{putSource("likes", "null", 0), refusal},
		{putSource("likes", `{"a":"`+strings.Repeat("x", SourceConfigBytesMax)+`"}`, 0), refusal},
		{putSource("likes", ` { "type" : "nats" } `, 0), made(first)}, // version 1
		{putSource("likes", `{}`, 0), exists},
		{putSource("likes", `{}`, 2), exists},
		{putSource("other", `{}`, 1), missing},
		{newMeaning("likes", 1, 0), refusal},
		{newMeaning("other", 0, 0), refusal},
		{start(first, 3, 10, ""), refusal},
		{start(first, 3, 10, strings.Repeat("x", IdentityBytesMax+1)), refusal},
		{start(second, 3, 10, "q1"), missing},
		{start(first, 3, 10, "q1"), partition(first, Partition{Epoch: 1, Sought: 0, Start: sink.Position{Lo: 10}, Identity: "q1"})}, // 2
		{start(first, 3, 20, "q2"), partition(first, Partition{Epoch: 1, Sought: 0, Start: sink.Position{Lo: 10}, Identity: "q1"})},
		{seek("likes", 2, 3, 5), refusal},
		{seek("other", 2, 3, 5), missing},
		{pause("other", 2, true), missing},
		{pause("likes", 1, true), exists}, // the start above has changed the version
		{pause("likes", 2, true), partition(first, Partition{Epoch: 2, Sought: 1, Start: sink.Position{Lo: 10}, Identity: "q1"})}, // 3
		{pause("likes", 3, true), partition(first, Partition{Epoch: 2, Sought: 1, Start: sink.Position{Lo: 10}, Identity: "q1"})}, // 4
		{pause("likes", 3, false), exists}, // a resume whose sender read the version before that pause
		{seek("likes", 3, 3, 5), exists},
		{seek("likes", 4, 3, 5), partition(first, Partition{Epoch: 3, Sought: 0, Start: sink.Position{Lo: 5}, Identity: ""})}, // 5
		{seek("likes", 4, 3, 5), exists},
		{start(first, 3, 10, "q2"), partition(first, Partition{Epoch: 3, Sought: 0, Start: sink.Position{Lo: 5}, Identity: "q2"})}, // 6
		{newMeaning("likes", 5, 7), exists},
		{putSource("likes", `{}`, 6), nil},   // 7
		{newMeaning("likes", 7, 7), refusal}, // the source is not paused
		{pause("likes", 7, true), partition(first, Partition{Epoch: 4, Sought: 3, Start: sink.Position{Lo: 5}, Identity: "q2"})}, // 8
		{pause("likes", 8, false), nil}, // 9
		{pause("likes", 9, true), partition(first, Partition{Epoch: 5, Sought: 3, Start: sink.Position{Lo: 5}, Identity: "q2"})}, // 10
		{start(first, 4, 1, "q2"), nil},       // 11
		{newMeaning("likes", 11, 7), refusal}, // the source now also has partition 4
		{seek("likes", 11, 3, 6), partition(first, Partition{Epoch: 6, Sought: 0, Start: sink.Position{Lo: 6}, Identity: ""})}, // 12
		{deleteSource("likes", 11), exists},
		{deleteSource("likes", 12), nil},
		{deleteSource("likes", 12), missing},
		{start(first, 3, 10, "q1"), missing},
		{putSource("likes", aConfig, 0), made(second)}, // 13
		{pause("likes", 12, true), exists},             // 12 was a version of the deleted source
		{start(second, 3, 1, "q1"), nil},               // 14
		{pause("likes", 14, true), partition(second, Partition{Epoch: 2, Sought: 1, Start: sink.Position{Lo: 1}, Identity: "q1"})},
	} {
		r := applyCommand(t, c, step.command)
		if step.check == nil && (r.Refused != "" || r.Missing || r.Exists) {
			t.Errorf("step %d: %+v", i, r)
		} else if step.check != nil {
			if wrong := step.check(r); wrong != "" {
				t.Errorf("step %d: %s: %+v", i, wrong, r)
			}
		}
		again := New()
		if err := rafttest.Restore(again, rafttest.Persisted(t, c)); err != nil || !sameView(again.View(), c.View()) {
			t.Fatalf("step %d: %s became %s, %v", i, c.View().encoded(), again.View().encoded(), err)
		}
	}
	v := c.View()
	for number, want := range map[uint64]bool{first: true, second: false, second + 1: false, 8<<32 | 1: false} {
		if got := v.SourceDeleted(7, number); got != want {
			t.Errorf("source %x deleted: %v", number, got)
		}
	}
}

func TestSourcesAreBounded(t *testing.T) {
	c := New()
	applyCommand(t, c, putNode(aNode("a.1", ClusterVersionMax), ""))
	for i := range SourcesMax {
		applyCommand(t, c, putSource(fmt.Sprintf("s%d", i), aConfig, 0))
	}
	if r := applyCommand(t, c, putSource("more", aConfig, 0)); r.Bound != BoundSources || !strings.Contains(r.Refused, "64") {
		t.Errorf("one source too many: %+v", r)
	}
	applyCommand(t, c, pause("s0", 1, true))
	many := &SeekSourceEntry{Name: "s0", Version: SourcesMax + 1, Positions: map[uint32]sink.Position{}}
	for i := range uint32(PartitionsMax) {
		many.Positions[i] = sink.Position{}
	}
	if r := applyCommand(t, c, &Command{SeekSource: many}); r.Refused != "" {
		t.Errorf("as many partitions as there may be: %s", r.Refused)
	}
	if r := applyCommand(t, c, start(second, 0, 1, "q")); r.Bound != BoundPartitions || !strings.Contains(r.Refused, "4096") {
		t.Errorf("one partition too many: %+v", r)
	}
	many.Version++
	if r := applyCommand(t, c, &Command{SeekSource: many}); r.Refused != "" || r.Exists {
		t.Errorf("the same partitions again: %+v", r)
	}
	if err := rafttest.Restore(New(), rafttest.Persisted(t, c)); err != nil {
		t.Error(err)
	}
}

func TestSourceNames(t *testing.T) {
	for name, want := range map[string]bool{
		"likes": true, "9-likes_of-posts": true, strings.Repeat("a", SourceNameBytesMax): true,
		"": false, "-likes": false, "_likes": false, "Likes": false, "a.b": false, "a/b": false, strings.Repeat("a", SourceNameBytesMax+1): false,
	} {
		if ValidSourceName(name) != want {
			t.Errorf("%q may be a name: %v", name, !want)
		}
	}
}

// If the messages of a source get another meaning, readers and shards see a new source. It
// continues at the positions of the shards.
func TestNewMeaning(t *testing.T) {
	c := New()
	applyCommand(t, c, putNode(aNode("a.1", ClusterVersionMax), ""))
	applyCommand(t, c, putSource("likes", `{}`, 0))
	applyCommand(t, c, start(first, 3, 10, "q1"))
	applyCommand(t, c, pause("likes", 2, true))
	r := applyCommand(t, c, newMeaning("likes", 3, 70))
	want := Partition{Epoch: 1, Start: sink.Position{Lo: 70}, Identity: "q1", Changed: sink.Position{Lo: 70}, ChangedIn: "q1"}
	if s := r.Source; s.Number != second || s.Paused || string(s.Config) != aConfig || len(s.Partitions) != 1 || s.Partitions[3] != want {
		t.Errorf("it is %+v, refused: %s", r.Source, r.Refused)
	}
	if v := c.View(); len(v.Sources) != 1 || !v.SourceDeleted(7, first) || v.SourceDeleted(7, second) {
		t.Errorf("the catalog has %s", v.encoded())
	}
	if r := applyCommand(t, c, start(first, 3, 10, "q1")); !r.Missing {
		t.Errorf("a reader of the old meaning has begun: %+v", r)
	}
	applyCommand(t, c, pause("likes", 4, true))
	if r := applyCommand(t, c, newMeaning("likes", 3, 70)); !r.Exists {
		t.Errorf("a late copy of the change: %+v", r)
	}
	if err := rafttest.Restore(New(), rafttest.Persisted(t, c)); err != nil {
		t.Error(err)
	}
}

// A rejected message counts once, even if two readers report it. After a seek it counts again.
func TestRejected(t *testing.T) {
	c := New()
	applyCommand(t, c, putNode(aNode("a.1", ClusterVersionMax), ""))
	applyCommand(t, c, &Command{SetVersion: &SetVersionEntry{Version: ClusterVersionMax}})
	applyCommand(t, c, putSource("likes", aConfig, 0))
	reject := func(was, to, n uint64, reason string) *Result {
		return applyCommand(t, c, &Command{RejectSource: &RejectSourceEntry{
			Number: first, Was: sink.Position{Lo: was}, To: sink.Position{Lo: to}, Rejected: n, Last: Rejection{3, sink.Position{Lo: to - 1}, reason},
		}})
	}
	if r := reject(0, 5, 2, "bad"); !r.Missing {
		t.Errorf("of a partition that has not begun: %+v", r)
	}
	version := applyCommand(t, c, start(first, 3, 0, "q1")).Source.Version
	is := func(rejected, to uint64, reason string) {
		t.Helper()
		s := c.View().Sources["likes"]
		if p := s.Partitions[3]; p.Rejected != rejected || p.RejectedTo != (sink.Position{Lo: to}) || s.LastRejected == nil || s.LastRejected.Reason != reason {
			t.Errorf("%+v, %+v", p, s.LastRejected)
		}
		if err := rafttest.Restore(New(), rafttest.Persisted(t, c)); err != nil {
			t.Error(err)
		}
	}
	reject(0, 5, 2, "bad")
	is(2, 5, "bad")
	for _, r := range []*Result{reject(0, 5, 2, "again"), reject(0, 9, 3, "other"), reject(5, 5, 1, "nothing")} {
		if !r.Exists {
			t.Errorf("told twice: %+v", r)
		}
	}
	if r := reject(5, 6, 1, strings.Repeat("x", ReasonBytesMax+1)); r.Refused == "" {
		t.Errorf("a long reason: %+v", r)
	}
	reject(5, 8, 1, "worse")
	is(3, 8, "worse")
	if r := applyCommand(t, c, pause("likes", version, true)); r.Exists { // nothing was changed
		t.Errorf("%+v", r)
	}
	applyCommand(t, c, seek("likes", version+1, 3, 4))
	reject(4, 5, 1, "bad")
	is(4, 5, "bad")
}

// As long as the queue is the same, MeantFrom is the highest position at which the meaning changed.
// Earlier configurations have counted the messages below it.
func TestMeantFrom(t *testing.T) {
	at := func(lo uint64) sink.Position { return sink.Position{Lo: lo} }
	sought := func(p Partition, to uint64, identity string) Partition {
		p.Epoch, p.Sought, p.Start, p.Identity = p.Epoch+1, 0, at(to), identity
		return p
	}
	begun := Partition{Epoch: 1, Start: at(10), Identity: "q1"}
	for name, test := range map[string]struct {
		p    Partition
		want uint64
	}{
		"never changed":                   {begun, 0},
		"changed before it counted":       {begun.changedAt(at(10)), 0},
		"changed":                         {begun.changedAt(at(50)), 50},
		"twice":                           {begun.changedAt(at(50)).changedAt(at(70)), 70},
		"twice at one place":              {begun.changedAt(at(50)).changedAt(at(50)), 50},
		"sought back":                     {sought(begun.changedAt(at(50)), 20, "q1"), 50},
		"sought back and changed":         {sought(begun.changedAt(at(50)), 20, "q1").changedAt(at(30)), 50},
		"sought in another queue":         {sought(begun.changedAt(at(50)), 20, "q2"), 0},
		"and changed":                     {sought(begun.changedAt(at(50)), 20, "q2").changedAt(at(30)), 30},
		"sought, and changed before read": {sought(sought(begun, 20, "").changedAt(at(20)), 20, "q1"), 20},
	} {
		if got := test.p.MeantFrom(); got != at(test.want) {
			t.Errorf("%s: from %v, want %d", name, got, test.want)
		}
	}
}

// A source that is created paused is Changing: the change that has created it resumes it later. If
// an operator pauses it meanwhile, the source stays paused.
func TestSourceIsMadePaused(t *testing.T) {
	c := New()
	applyCommand(t, c, putNode(aNode("a.1", ClusterVersionMax), ""))
	paused := func(config string, version uint64) *Command {
		put := putSource("likes", config, version)
		put.PutSource.Paused = true
		return put
	}
	is := func(r *Result, paused, changing bool) {
		t.Helper()
		if r.Refused != "" || r.Source.Paused != paused || r.Source.Changing != changing {
			t.Errorf("it is %+v, want paused %t, changing %t", r, paused, changing)
		}
	}
	is(applyCommand(t, c, paused(aConfig, 0)), true, true)
	is(applyCommand(t, c, paused(`{}`, 1)), true, true)
	is(applyCommand(t, c, pause("likes", 2, true)), true, false)
	is(applyCommand(t, c, paused(`{}`, 3)), true, false)
	is(applyCommand(t, c, putSource("likes", `{}`, 4)), false, false)
	if r := applyCommand(t, c, paused(`{}`, 5)); r.Refused == "" {
		t.Errorf("a change has paused a source that ran: %+v", r)
	}
	hold := pause("likes", 5, true)
	hold.PauseSource.Changing = true
	is(applyCommand(t, c, hold), true, true)
	is(applyCommand(t, c, seek("likes", 6, 0, 1)), true, false)
}

// A source from another cluster's backup is created once, with its partitions, and paused as by an
// operator. Its Origin is removed once its messages get another meaning.
func TestSourceOfABackup(t *testing.T) {
	c := New()
	applyCommand(t, c, putNode(aNode("a.1", ClusterVersionMax), ""))
	applyCommand(t, c, &Command{SetVersion: &SetVersionEntry{Version: ClusterVersionMax}})
	restored := func(p Partition) *Command {
		put := putSource("likes", aConfig, 0)
		put.PutSource.Paused, put.PutSource.Origin, put.PutSource.Partitions = true, 99, map[uint32]Partition{3: p}
		return put
	}
	for _, bad := range []Partition{{}, {Epoch: 2}, {Epoch: 1, Sought: 1}, {Epoch: 1, Identity: strings.Repeat("x", IdentityBytesMax+1)}} {
		if r := applyCommand(t, c, restored(bad)); r.Refused == "" {
			t.Errorf("%+v was taken", bad)
		}
	}
	running := restored(Partition{Epoch: 1})
	if running.PutSource.Paused = false; applyCommand(t, c, running).Refused == "" {
		t.Error("one that runs was taken")
	}
	good := Partition{Epoch: 1, Origin: 5, Start: sink.Position{Lo: 8}, Identity: "q"}
	r := applyCommand(t, c, restored(good))
	if s := r.Source; r.Refused != "" || s.Number != first || s.Origin != 99 || !s.Paused || s.Changing || s.Partitions[3] != good {
		t.Errorf("it is %+v", r)
	}
	if r := applyCommand(t, c, restored(good)); !r.Exists || r.Source.Origin != 99 {
		t.Errorf("again: %+v", r)
	}
	again := New()
	if err := rafttest.Restore(again, rafttest.Persisted(t, c)); err != nil || again.View().Sources["likes"].Partitions[3] != good {
		t.Errorf("restored %+v, %v", again.View().Sources, err)
	}
	if r := applyCommand(t, c, newMeaning("likes", 1, 20)); r.Refused != "" || r.Source.Origin != 0 || r.Source.Partitions[3].Origin != 0 {
		t.Errorf("with another meaning it is %+v", r)
	}
}
