package catalog

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/countd/countd/raftfsm/codec/codectest"
	"github.com/countd/countd/source/sink"
)

const aConfig = `{"type":"nats"}`

func putSource(name, config string, number uint64) *Command {
	return &Command{PutSource: &PutSourceEntry{Name: name, Config: json.RawMessage(config), Number: number, Cluster: 7}}
}

// newMeaning returns the command that gives a source another meaning, all shards of partition 3
// being at a position of an epoch.
func newMeaning(name string, number uint64, epoch uint32, at uint64) *Command {
	c := putSource(name, aConfig, number)
	c.PutSource.NewMeaning = true
	c.PutSource.Partitions = map[uint32]Partition{3: {Epoch: epoch, Start: sink.Position{Lo: at}}}
	return c
}

func pause(name string, paused bool) *Command {
	return &Command{PauseSource: &PauseSourceEntry{Name: name, Paused: paused}}
}

func seek(name string, partition, fenced uint32, to uint64) *Command {
	return &Command{SeekSource: &SeekSourceEntry{
		Name: name, Number: first, Positions: map[uint32]sink.Position{partition: {Lo: to}}, Epochs: map[uint32]uint32{partition: fenced},
	}}
}

func start(number uint64, partition uint32, from uint64, identity string) *Command {
	return &Command{StartSource: &StartSourceEntry{Number: number, Starts: map[uint32]sink.Position{partition: {Lo: from}}, Identity: identity}}
}

func deleteSource(name string, number uint64) *Command {
	return &Command{DeleteSource: &DeleteSourceEntry{Name: name, Number: number}}
}

const (
	first  = 7<<32 | 1
	second = 7<<32 | 2
)

// sourceSteps are commands of sources, which need their cluster version.
func sourceSteps() (steps []struct {
	name    string
	command *Command
}) {
	for _, command := range []*Command{
		putSource("likes", ` { "type" : "nats" } `, 0), start(first, 3, 10, "q1"), pause("likes", true), seek("likes", 3, 2, 5),
		start(first, 3, 9, "q2"), putSource("likes", `{"type":"<>"}`, first), deleteSource("likes", first),
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
	if r := applyCommand(t, c, putSource("likes", aConfig, 0)); r.Refused == "" {
		t.Errorf("a source in cluster version 1: %+v", r)
	}
	applyCommand(t, c, &Command{SetVersion: &SetVersionEntry{Version: ClusterVersionMax}})
	partition := func(number uint64, want Partition) func(*Result) string {
		return func(*Result) string {
			s, _ := c.View().Source(number)
			if got := s.Partitions[3]; got != want {
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
		{putSource("likes", ` { "type" : "nats" } `, 0), made(first)},
		{putSource("likes", `{}`, 0), exists},
		{putSource("likes", `{}`, second), missing},
		{newMeaning("likes", first, 1, 0), refusal},
		{newMeaning("other", 0, 1, 0), refusal},
		{start(first, 3, 10, ""), refusal},
		{start(first, 3, 10, strings.Repeat("x", IdentityBytesMax+1)), refusal},
		{start(second, 3, 10, "q1"), missing},
		{start(first, 3, 10, "q1"), partition(first, Partition{1, 0, sink.Position{Lo: 10}, "q1"})},
		{start(first, 3, 20, "q2"), partition(first, Partition{1, 0, sink.Position{Lo: 10}, "q1"})},
		{seek("likes", 3, 1, 5), refusal},
		{seek("other", 3, 1, 5), missing},
		{pause("other", true), missing},
		{pause("likes", true), partition(first, Partition{2, 1, sink.Position{Lo: 10}, "q1"})},
		{pause("likes", true), partition(first, Partition{2, 1, sink.Position{Lo: 10}, "q1"})},
		{seek("likes", 3, 1, 5), refusal},  // it was fenced before the pause
		{seek("likes", 3, 1, 10), refusal}, // likewise, although it began there
		{seek("likes", 4, 1, 5), refusal},  // it has not begun
		{seek("likes", 3, 2, 5), partition(first, Partition{3, 0, sink.Position{Lo: 5}, ""})},
		{seek("likes", 3, 2, 5), partition(first, Partition{3, 0, sink.Position{Lo: 5}, ""})}, // the same again
		{seek("likes", 3, 2, 6), refusal},
		{start(first, 3, 10, "q2"), partition(first, Partition{3, 0, sink.Position{Lo: 5}, "q2"})},
		{newMeaning("likes", first, 2, 7), refusal}, // the epoch was another
		{newMeaning("likes", second, 3, 7), missing},
		{putSource("likes", `{}`, first), nil},
		{pause("likes", false), partition(first, Partition{3, 0, sink.Position{Lo: 5}, "q2"})},
		{newMeaning("likes", first, 3, 7), refusal},
		{pause("likes", true), partition(first, Partition{4, 3, sink.Position{Lo: 5}, "q2"})},
		{pause("likes", false), nil},
		{pause("likes", true), partition(first, Partition{5, 3, sink.Position{Lo: 5}, "q2"})},
		{start(first, 4, 1, "q2"), nil},
		{newMeaning("likes", first, 5, 7), refusal}, // it has another partition by now
		{seek("likes", 3, 5, 6), partition(first, Partition{6, 0, sink.Position{Lo: 6}, ""})},
		{deleteSource("likes", second), missing},
		{deleteSource("likes", first), nil},
		{deleteSource("likes", first), missing},
		{start(first, 3, 10, "q1"), missing},
		{putSource("likes", aConfig, 0), made(second)},
		{start(second, 3, 1, "q1"), nil},
		{pause("likes", true), partition(second, Partition{2, 1, sink.Position{Lo: 1}, "q1"})},
		{seek("likes", 3, 2, 5), refusal}, // the other source of the name was fenced
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
		if err := codectest.Restore(again, codectest.Persisted(t, c)); err != nil || !sameView(again.View(), c.View()) {
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
	applyCommand(t, c, &Command{SetVersion: &SetVersionEntry{Version: ClusterVersionMax}})
	for i := range SourcesMax {
		applyCommand(t, c, putSource(fmt.Sprintf("s%d", i), aConfig, 0))
	}
	if r := applyCommand(t, c, putSource("more", aConfig, 0)); r.Bound != BoundSources || !strings.Contains(r.Refused, "64") {
		t.Errorf("one source too many: %+v", r)
	}
	applyCommand(t, c, pause("s0", true))
	many := &SeekSourceEntry{Name: "s0", Number: first, Positions: map[uint32]sink.Position{}}
	for i := range uint32(PartitionsMax) {
		many.Positions[i] = sink.Position{}
	}
	if r := applyCommand(t, c, &Command{SeekSource: many}); r.Refused != "" {
		t.Errorf("as many partitions as there may be: %s", r.Refused)
	}
	if r := applyCommand(t, c, start(second, 0, 1, "q")); r.Bound != BoundPartitions || !strings.Contains(r.Refused, "4096") {
		t.Errorf("one partition too many: %+v", r)
	}
	if r := applyCommand(t, c, &Command{SeekSource: many}); r.Refused != "" {
		t.Errorf("the same partitions again: %s", r.Refused)
	}
	if err := codectest.Restore(New(), codectest.Persisted(t, c)); err != nil {
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

// A source whose messages mean something else is another to its readers and to the shards, and
// goes on where they are.
func TestNewMeaning(t *testing.T) {
	c := New()
	applyCommand(t, c, putNode(aNode("a.1", ClusterVersionMax), ""))
	applyCommand(t, c, &Command{SetVersion: &SetVersionEntry{Version: ClusterVersionMax}})
	applyCommand(t, c, putSource("likes", `{}`, 0))
	applyCommand(t, c, start(first, 3, 10, "q1"))
	applyCommand(t, c, pause("likes", true))
	r := applyCommand(t, c, newMeaning("likes", first, 2, 70))
	want := Partition{Epoch: 1, Start: sink.Position{Lo: 70}, Identity: "q1"}
	if s := r.Source; s.Number != second || s.Paused || string(s.Config) != aConfig || len(s.Partitions) != 1 || s.Partitions[3] != want {
		t.Errorf("it is %+v, refused: %s", r.Source, r.Refused)
	}
	if v := c.View(); len(v.Sources) != 1 || !v.SourceDeleted(7, first) || v.SourceDeleted(7, second) {
		t.Errorf("the catalog has %s", v.encoded())
	}
	if r := applyCommand(t, c, start(first, 3, 10, "q1")); !r.Missing {
		t.Errorf("a reader of the old meaning has begun: %+v", r)
	}
	applyCommand(t, c, pause("likes", true))
	if r := applyCommand(t, c, newMeaning("likes", first, 2, 70)); !r.Missing {
		t.Errorf("a late copy of the change: %+v", r)
	}
	if err := codectest.Restore(New(), codectest.Persisted(t, c)); err != nil {
		t.Error(err)
	}
}

// A source that is made paused stays so until it is resumed.
func TestSourceIsMadePaused(t *testing.T) {
	c := New()
	applyCommand(t, c, putNode(aNode("a.1", ClusterVersionMax), ""))
	applyCommand(t, c, &Command{SetVersion: &SetVersionEntry{Version: ClusterVersionMax}})
	made := putSource("likes", aConfig, 0)
	made.PutSource.Paused = true
	if r := applyCommand(t, c, made); !r.Source.Paused {
		t.Errorf("made %+v", r)
	}
	applyCommand(t, c, pause("likes", false))
	change := putSource("likes", `{}`, first)
	change.PutSource.Paused = true
	if r := applyCommand(t, c, change); r.Source.Paused {
		t.Errorf("changed %+v", r)
	}
}
