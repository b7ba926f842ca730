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

func putSource(name, config string, number uint64, onlyPaused bool) *Command {
	return &Command{PutSource: &PutSourceEntry{Name: name, Config: json.RawMessage(config), Number: number, Cluster: 7, OnlyPaused: onlyPaused}}
}

func pause(name string, paused bool) *Command {
	return &Command{PauseSource: &PauseSourceEntry{Name: name, Paused: paused}}
}

func seek(name string, partition uint32, to uint64) *Command {
	return &Command{SeekSource: &SeekSourceEntry{Name: name, Positions: map[uint32]sink.Position{partition: {Lo: to}}}}
}

func start(number uint64, partition uint32, from uint64, identity string) *Command {
	return &Command{StartSource: &StartSourceEntry{Number: number, Partition: partition, Start: sink.Position{Lo: from}, Identity: identity}}
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
		putSource("likes", ` { "type" : "nats" } `, 0, false), start(first, 3, 10, "q1"), pause("likes", true), seek("likes", 3, 5),
		start(first, 3, 9, "q2"), putSource("likes", `{"type":"<>"}`, first, true), deleteSource("likes", first),
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
	if r := applyCommand(t, c, putSource("likes", aConfig, 0, false)); r.Refused == "" {
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
		{putSource("Likes", aConfig, 0, false), refusal},
		{putSource("likes", "[]", 0, false), refusal},
		{putSource("likes", "null", 0, false), refusal},
		{putSource("likes", `{"a":"`+strings.Repeat("x", SourceConfigBytesMax)+`"}`, 0, false), refusal},
		{putSource("likes", ` { "type" : "nats" } `, 0, false), made(first)},
		{putSource("likes", `{}`, 0, false), exists},
		{putSource("likes", `{}`, second, false), missing},
		{putSource("likes", `{}`, first, true), refusal},
		{start(first, 3, 10, ""), refusal},
		{start(first, 3, 10, strings.Repeat("x", IdentityBytesMax+1)), refusal},
		{start(second, 3, 10, "q1"), missing},
		{start(first, 3, 10, "q1"), partition(first, Partition{1, sink.Position{Lo: 10}, "q1"})},
		{start(first, 3, 20, "q2"), partition(first, Partition{1, sink.Position{Lo: 10}, "q1"})},
		{seek("likes", 3, 5), refusal},
		{seek("other", 3, 5), missing},
		{pause("other", true), missing},
		{pause("likes", true), nil},
		{seek("likes", 3, 5), partition(first, Partition{2, sink.Position{Lo: 5}, ""})},
		{start(first, 3, 10, "q2"), partition(first, Partition{2, sink.Position{Lo: 5}, "q2"})},
		{putSource("likes", `{}`, first, true), nil},
		{deleteSource("likes", second), missing},
		{deleteSource("likes", first), nil},
		{deleteSource("likes", first), missing},
		{start(first, 3, 10, "q1"), missing},
		{putSource("likes", aConfig, 0, false), made(second)},
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
		applyCommand(t, c, putSource(fmt.Sprintf("s%d", i), aConfig, 0, false))
	}
	if r := applyCommand(t, c, putSource("more", aConfig, 0, false)); r.Bound != BoundSources || !strings.Contains(r.Refused, "64") {
		t.Errorf("one source too many: %+v", r)
	}
	applyCommand(t, c, pause("s0", true))
	many := &SeekSourceEntry{Name: "s0", Positions: map[uint32]sink.Position{}}
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

// A source that is made paused stays so until it is resumed.
func TestSourceIsMadePaused(t *testing.T) {
	c := New()
	applyCommand(t, c, putNode(aNode("a.1", ClusterVersionMax), ""))
	applyCommand(t, c, &Command{SetVersion: &SetVersionEntry{Version: ClusterVersionMax}})
	made := putSource("likes", aConfig, 0, false)
	made.PutSource.Paused = true
	if r := applyCommand(t, c, made); !r.Source.Paused {
		t.Errorf("made %+v", r)
	}
	applyCommand(t, c, pause("likes", false))
	change := putSource("likes", `{}`, first, false)
	change.PutSource.Paused = true
	if r := applyCommand(t, c, change); r.Source.Paused {
		t.Errorf("changed %+v", r)
	}
}
