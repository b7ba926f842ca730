package sources

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/countd/countd/admin"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/source"
)

// ReportCall is the name of the call by which a node asks another what it reads. Nodes know
// it from the first cluster version with sources on.
const ReportCall = "sources.report"

// Position is a place in a partition: all below it is applied.
type Position = source.Position

// Source is a source as its operators see it.
type Source struct {
	Name   string `json:"name"`
	Type   string `json:"type"`
	State  string `json:"state"`  // running, paused or stalled
	Reason string `json:"reason"` // why it is stalled or does not go on
	// Node is the node that reads all of it; empty if several do or none does.
	Node       string          `json:"node,omitempty"`
	Applied    uint64          `json:"applied"`
	Rejected   uint64          `json:"rejected"`
	Lag        *uint64         `json:"lag,omitempty"` // of all partitions, if it is known of all
	Partitions []Partition     `json:"partitions"`
	Config     json.RawMessage `json:"config"`
}

// Partition is one partition of a source, as the node that reads it reports it.
type Partition struct {
	Partition uint32 `json:"partition"`
	State     string `json:"state"`
	Reason    string `json:"reason"`
	Node      string `json:"node,omitempty"`
	// Position, End and Lag are nil while nobody knows them.
	Position   *Position `json:"position,omitempty"`
	End        *Position `json:"end,omitempty"`
	EndAgeMS   *int64    `json:"end_age_ms,omitempty"` // since End was read
	Lag        *uint64   `json:"lag,omitempty"`        // messages
	LagSeconds float64   `json:"lag_seconds"`
	Rate       float64   `json:"rate"` // messages a second
	Applied    uint64    `json:"applied"`
	Rejected   uint64    `json:"rejected"`
}

// report is what a node says of one source that it reads.
type report struct {
	Number     uint64      `json:"number"`
	Failed     string      `json:"failed,omitempty"` // why it reads less than it owns
	Partitions []Partition `json:"partitions"`
}

// HandleReport answers ReportCall.
func (s *Sources) HandleReport(context.Context, []byte) ([]byte, error) {
	return json.Marshal(s.report())
}

// report returns what this node reads, by number.
func (s *Sources) report() []report {
	all := []report{}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, number := range slices.Sorted(maps.Keys(s.mu.readers)) {
		statuses, err := s.mu.readers[number].status()
		r := report{Number: number}
		if err != nil {
			r.Failed = err.Error()
		}
		for _, partition := range slices.Sorted(maps.Keys(statuses)) {
			r.Partitions = append(r.Partitions, partitionOf(partition, statuses[partition]))
		}
		all = append(all, r)
	}
	return all
}

func partitionOf(number uint32, of source.Status) Partition {
	p := Partition{
		Partition: number, State: of.State, Reason: of.Reason,
		LagSeconds: of.LagSeconds, Rate: of.Rate, Applied: of.Applied, Rejected: of.Rejected,
	}
	if of.Known {
		age := time.Since(of.Looked).Milliseconds()
		p.Position, p.End, p.EndAgeMS = &of.Position, &of.End, &age
		if lag, known := of.Lag(); known {
			p.Lag = &lag
		}
	}
	return p
}

// List returns all sources by name.
func (s *Sources) List(ctx context.Context) ([]Source, error) {
	n, err := s.cfg.Node()
	if err != nil {
		return nil, err
	}
	return s.join(ctx, n, n.Sources()), nil
}

// Get returns a source.
func (s *Sources) Get(ctx context.Context, name string) (*Source, error) {
	n, of, err := s.find(ctx, name)
	if err != nil {
		return nil, err
	}
	return &s.join(ctx, n, []shard.Source{of})[0], nil
}

// find returns the source of a name. It has every change acknowledged before the call.
func (s *Sources) find(ctx context.Context, name string) (*shard.Node, shard.Source, error) {
	n, err := s.cfg.Node()
	if err != nil {
		return nil, shard.Source{}, err
	}
	if err := n.CatchUp(ctx); err != nil {
		return nil, shard.Source{}, err
	}
	of, err := n.Source(name)
	return n, of, err
}

// join adds to sources what the nodes report.
func (s *Sources) join(ctx context.Context, n *shard.Node, all []shard.Source) []Source {
	view := n.Catalog()
	reports := s.reports(ctx, n, view)
	name := admin.Names(view)
	joined := make([]Source, len(all))
	var joins sync.WaitGroup
	for i, of := range all { // a paused one waits for its queue
		joins.Go(func() { joined[i] = s.joinOne(ctx, n, of, reports, name) })
	}
	joins.Wait()
	return joined
}

// reports asks all nodes what they read.
func (s *Sources) reports(ctx context.Context, n *shard.Node, view *catalog.View) map[string][]report {
	reports := map[string][]report{}
	if !view.TakesSources() {
		return reports
	}
	for key, raw := range n.AskAll(ctx, ReportCall, nil) {
		var of []report
		if json.Unmarshal(raw, &of) == nil { // a node that cannot be understood does not answer
			reports[key] = of
		}
	}
	return reports
}

func (s *Sources) joinOne(ctx context.Context, n *shard.Node, of shard.Source, reports map[string][]report, name admin.NodeNames) Source {
	out := Source{Name: of.Name, State: source.StateRunning, Partitions: []Partition{}, Config: of.Config}
	if cfg, err := source.ParseConfig(of.Config); err == nil {
		out.Type = cfg.Type
	}
	found := map[uint32]Partition{}
	for _, key := range slices.Sorted(maps.Keys(reports)) {
		for _, r := range reports[key] {
			if r.Number != of.Number {
				continue
			}
			if r.Failed != "" {
				out.Reason = name[key] + ": " + r.Failed
			}
			for _, p := range r.Partitions {
				p.Node = name[key]
				if before, twice := found[p.Partition]; !twice || ahead(&p, &before) {
					found[p.Partition] = p
				}
			}
		}
	}
	switch {
	case of.Paused:
		out.State, out.Reason = source.StatePaused, ""
		found = s.paused(ctx, n, of)
	default:
		for partition := range of.Partitions {
			if _, is := found[partition]; !is {
				found[partition] = Partition{Partition: partition, State: source.StateRunning, Reason: "no node reads it at the moment"}
			}
		}
	}
	for _, partition := range slices.Sorted(maps.Keys(found)) {
		out.Partitions = append(out.Partitions, found[partition])
	}
	out.sum()
	return out
}

// ahead reports whether the reader of a report has read further than that of another.
func ahead(p, other *Partition) bool {
	return p.Position != nil && (other.Position == nil || other.Position.Less(*p.Position))
}

// sum sets the fields of the source from its partitions.
func (out *Source) sum() {
	lag, known := uint64(0), len(out.Partitions) > 0
	for i, p := range out.Partitions {
		out.Applied += p.Applied
		out.Rejected += p.Rejected
		if p.Lag == nil {
			known = false
		} else {
			lag += *p.Lag
		}
		if i == 0 {
			out.Node = p.Node
		} else if out.Node != p.Node {
			out.Node = ""
		}
		if p.State == source.StateStalled && out.State != source.StateStalled {
			out.State, out.Reason = source.StateStalled, p.Reason
		}
		if out.Reason == "" {
			out.Reason = p.Reason
		}
	}
	if known {
		out.Lag = &lag
	}
}

// pausedLook bounds the wait for the end of a queue that nobody reads.
const pausedLook = time.Second

// lookAtOnce bounds the partitions of a paused source that are read concurrently.
const lookAtOnce = 64

// paused returns the partitions of a paused source, from the shards and from its queue.
func (s *Sources) paused(ctx context.Context, n *shard.Node, of shard.Source) map[uint32]Partition {
	var broker source.Broker
	if cfg, err := source.ParseConfig(of.Config); err == nil {
		if broker, err = s.cfg.Open(cfg); err == nil {
			defer broker.Close()
		}
	}
	looking, cancel := context.WithTimeout(ctx, pausedLook)
	defer cancel()
	var mu sync.Mutex
	var looks errgroup.Group
	looks.SetLimit(lookAtOnce)
	found := make(map[uint32]Partition, len(of.Partitions))
	for number := range of.Partitions {
		looks.Go(func() error {
			p := Partition{Partition: number, State: source.StatePaused, Position: pausedAt(ctx, n, of, number)}
			if broker != nil && p.Position != nil {
				p.look(looking, broker)
			}
			mu.Lock()
			defer mu.Unlock()
			found[number] = p
			return nil
		})
	}
	_ = looks.Wait()
	return found
}

// pausedAt returns the position that all shards have reached, nil if a shard does not answer.
func pausedAt(ctx context.Context, n *shard.Node, of shard.Source, partition uint32) *Position {
	all, err := n.SourcePositions(ctx, of.Number, partition)
	if err != nil {
		return nil
	}
	at, known := of.Partitions[partition].Start, false
	for _, shard := range all {
		if shard.Known && (!known || shard.Position.Less(at)) {
			at, known = shard.Position, true
		}
	}
	return &at
}

// look sets End and Lag of a partition that nobody reads.
func (p *Partition) look(ctx context.Context, broker source.Broker) {
	_, end, err := broker.Bounds(ctx, p.Partition)
	if err != nil {
		return
	}
	p.End = &end
	if end.Hi == 0 && p.Position.Hi == 0 && !end.Less(*p.Position) {
		lag := end.Lo - p.Position.Lo
		p.Lag = &lag
	}
}
