package api

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/sources"
)

// fakeSources always has exactly the source likes. Its calls change nothing.
type fakeSources struct{ node *fakeNode }

func (f fakeSources) source(state string) *sources.Source {
	lag, age := uint64(88), int64(310)
	s := &sources.Source{
		Name: "likes", Type: "redis-stream", State: state, Applied: 812, Lag: &lag,
		Partitions: []sources.Partition{{State: state, Position: &sources.Position{Lo: 812}, End: &sources.Position{Lo: 900}, Lag: &lag}},
		Config:     json.RawMessage(`{"name":"likes","type":"redis-stream","addr":"127.0.0.1:6379","key":"likes"}`),
	}
	if p, seconds := &s.Partitions[0], 0.5; state == "running" {
		s.Node, p.Node = "n1", "n1"
		p.EndAgeMS, p.LagSeconds, p.Rate, p.Applied = &age, &seconds, 1200, 812
	}
	return s
}

// named returns the source likes in a state, and ErrUnknownSource for any other name.
func (f fakeSources) named(name, state string) (*sources.Source, error) {
	switch err := f.node.trouble(); {
	case err != nil:
		return nil, err
	case name != "likes":
		return nil, fmt.Errorf("%w: %q", sources.ErrUnknownSource, name)
	}
	return f.source(state), nil
}

func (f fakeSources) List(context.Context) ([]sources.Source, error) {
	if err := f.node.trouble(); err != nil {
		return nil, err
	}
	s := f.source("running")
	s.Rejected, s.DeadLetters = 1, "likes.dead"
	s.LastRejected = &catalog.Rejection{Position: sources.Position{Lo: 811}, Reason: "no such column"}
	return []sources.Source{*s}, nil
}

func (f fakeSources) Get(_ context.Context, name string) (*sources.Source, error) {
	return f.named(name, "running")
}

func (f fakeSources) Put(_ context.Context, name string, text []byte) (*sources.Source, error) {
	if string(text) == `{"type":"carrier-pigeon"}` {
		return nil, &errs.ArgumentError{Field: "type", Problem: "none of kafka, nats, redis-stream and postgres"}
	}
	return f.named(name, "running")
}

func (f fakeSources) Save(context.Context) ([]sources.Saved, error) {
	if err := f.node.trouble(); err != nil {
		return nil, err
	}
	return []sources.Saved{{
		Name: "likes", Number: "8589934593", Origin: "4294967297", Config: f.source("").Config,
		Partitions: map[uint32]sources.SavedPartition{0: {Since: 1, Identity: "likes"}},
	}}, nil
}

func (f fakeSources) RestoreSaved(_ context.Context, text []byte) (*sources.Source, error) {
	if string(text) == `{"name":"likes","number":"x"}` {
		return nil, &errs.ArgumentError{Field: "number", Problem: "not a number from 1 to 2^64 - 1"}
	}
	return f.named("likes", "paused")
}

func (f fakeSources) Pause(_ context.Context, name string) (*sources.Source, error) {
	return f.named(name, "paused")
}

func (f fakeSources) Resume(_ context.Context, name string) (*sources.Source, error) {
	return f.named(name, "running")
}

func (f fakeSources) Seek(_ context.Context, name string, to map[uint32]string) (*sources.Source, error) {
	if to[0] == "x" {
		return nil, &errs.ArgumentError{Field: "positions.0", Problem: "not a position"}
	}
	return f.named(name, "paused")
}

func (f fakeSources) Past(_ context.Context, name, _ string, _ uint32, from string) (*sources.Past, error) {
	if from == "x" {
		return nil, &errs.ArgumentError{Field: "from", Problem: "not a position"}
	}
	_, err := f.named(name, "")
	floor := int64(0)
	return &sources.Past{Events: []sources.Event{
		{Position: sources.Position{Lo: 700}, ID: "1", Add: map[string]int64{"like": -1}, Floor: &floor},
		{Position: sources.Position{Lo: 701}, ID: "1", Set: map[string]int64{"view": 5}},
	}, Next: sources.Position{Lo: 702}}, err
}

func (f fakeSources) Rows(_ context.Context, name, _ string, _ []string) (*sources.Rows, error) {
	_, err := f.named(name, "")
	return &sources.Rows{
		Rows:   []sources.Row{{ID: "1", Counts: map[string]int64{"like": 12}}},
		Shards: map[int][]sources.Window{0: {{From: sources.Position{Lo: 810}, To: sources.Position{Lo: 812}}}},
	}, err
}

func (f fakeSources) Delete(_ context.Context, name string) error {
	_, err := f.named(name, "")
	return err
}
