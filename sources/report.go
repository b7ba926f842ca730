package sources

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/countd/countd/admin"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/source"
)

// ReportCall is the name of the call for a node's reports of the sources that it reads.
const ReportCall = "sources.report"

// Position is a place in a partition. All messages below it are applied.
type Position = source.Position

// Source describes a source for operators.
type Source struct {
	Name   string `json:"name"`
	Type   string `json:"type"`
	State  string `json:"state"`  // running, paused or stalled
	Reason string `json:"reason"` // why the source is stalled or makes no progress
	// Node is the name of the node that reads all partitions; "" if several or no nodes do.
	Node string `json:"node,omitempty"`
	// Applied is the number of messages that all nodes have applied since they started.
	Applied  uint64 `json:"applied"`
	Rejected uint64 `json:"rejected"`
	// DeadLetters is the queue of rejected messages; "" for none.
	DeadLetters string `json:"dead_letters,omitempty"`
	// LastRejected is nil if no message was ever rejected.
	LastRejected *catalog.Rejection `json:"last_rejected,omitempty"`
	Lag          *uint64            `json:"lag,omitempty"` // sum over the partitions; nil unless the lag of each is known
	Partitions   []Partition        `json:"partitions"`
	Config       json.RawMessage    `json:"config"`
}

// Partition describes one partition of a source, as its reader reports it. If the partition has no
// reader, the position comes from the shards, and the end from the queue.
type Partition struct {
	Partition uint32 `json:"partition"`
	State     string `json:"state"`
	Reason    string `json:"reason"`
	Node      string `json:"node,omitempty"`
	// Position, End and Lag are nil while they are unknown.
	Position   *Position `json:"position,omitempty"`
	End        *Position `json:"end,omitempty"`
	EndAgeMS   *int64    `json:"end_age_ms,omitempty"` // age of End in ms
	Lag        *uint64   `json:"lag,omitempty"`        // messages
	LagSeconds *float64  `json:"lag_seconds"`          // null while unknown
	Rate       float64   `json:"rate"`                 // applied messages per second
	Applied    uint64    `json:"applied"`
	Rejected   uint64    `json:"rejected"`
}

// report is one node's report of a source that it reads, or has read since it started.
type report struct {
	Number     uint64            `json:"number"`
	Ended      bool              `json:"ended,omitempty"`  // the node does not read the source
	Failed     string            `json:"failed,omitempty"` // the reason why the node does not read all partitions that it owns
	Partitions []Partition       `json:"partitions"`
	Listed     map[uint32]int64  `json:"listed,omitempty"`  // partition of the queue → time in ms since the node first listed it
	Counted    map[uint32]uint64 `json:"counted,omitempty"` // partition that the node reads or has read → number of applied messages
}

// HandleReport answers ReportCall.
func (s *Sources) HandleReport(context.Context, []byte) ([]byte, error) {
	return json.Marshal(s.report())
}

// report returns this node's reports, ascending by source number.
func (s *Sources) report() []report {
	all := []report{}
	s.mu.Lock()
	defer s.mu.Unlock()
	counted := s.counts.load()
	for _, number := range slices.Sorted(maps.Keys(s.mu.readers)) {
		statuses, err := s.mu.readers[number].status()
		r := report{Number: number, Counted: counted[number]}
		if err != nil {
			r.Failed = err.Error()
		}
		r.Listed = s.mu.readers[number].listed()
		for _, partition := range slices.Sorted(maps.Keys(statuses)) {
			r.Partitions = append(r.Partitions, partitionOf(partition, statuses[partition]))
		}
		all = append(all, r)
		delete(counted, number)
	}
	for _, number := range slices.Sorted(maps.Keys(counted)) {
		all = append(all, report{Number: number, Ended: true, Counted: counted[number]})
	}
	return all
}

func partitionOf(number uint32, status source.Status) Partition {
	p := Partition{Partition: number, State: status.State, Reason: status.Reason, Rate: status.Rate}
	if status.LagSeconds >= 0 {
		p.LagSeconds = &status.LagSeconds
	}
	if status.Known {
		age := time.Since(status.Looked).Milliseconds()
		p.Position, p.End, p.EndAgeMS = &status.Position, &status.End, &age
		if lag, known := status.Lag(); known {
			p.Lag = &lag
		}
	}
	return p
}

// List returns all sources by name.
func (s *Sources) List(ctx context.Context) ([]Source, error) {
	n, err := s.node()
	if err != nil {
		return nil, err
	}
	return s.join(ctx, n, n.Sources()), nil
}

func (s *Sources) Get(ctx context.Context, name string) (*Source, error) {
	n, src, err := s.find(ctx, name)
	if err != nil {
		return nil, err
	}
	return &s.join(ctx, n, []catalog.Source{src})[0], nil
}

// find returns the source with a name. The result includes all changes acknowledged before the
// call.
func (s *Sources) find(ctx context.Context, name string) (*node, catalog.Source, error) {
	n, err := s.node()
	if err != nil {
		return nil, catalog.Source{}, err
	}
	if err := n.CatchUp(ctx); err != nil {
		return nil, catalog.Source{}, err
	}
	src, err := n.Source(name)
	return n, src, err
}

// join returns sources with the reports of all nodes.
func (s *Sources) join(ctx context.Context, n *node, all []catalog.Source) []Source {
	view := n.Catalog()
	reports := s.reports(ctx, n, view)
	name := admin.Names(view)
	joined := make([]Source, len(all))
	var joins sync.WaitGroup
	for i, src := range all { // concurrently, because for a source without a reader this reads the queue
		joins.Go(func() { joined[i] = s.joinOne(ctx, n, src, reports, name) })
	}
	joins.Wait()
	return joined
}

// reports asks all nodes for their reports.
func (s *Sources) reports(ctx context.Context, n *node, view *catalog.View) map[string][]report {
	reports := map[string][]report{}
	for key, raw := range n.AskAll(ctx, ReportCall, nil) {
		var src []report
		if json.Unmarshal(raw, &src) == nil { // ignore an answer that cannot be decoded
			reports[key] = src
		}
	}
	return reports
}

func (s *Sources) joinOne(ctx context.Context, n *node, src catalog.Source, reports map[string][]report, name admin.NodeNames) Source {
	out := Source{Name: src.Name, State: source.StateRunning, Partitions: []Partition{}, Config: src.Config}
	if now, there := n.Catalog().Source(src.Number); there { // read the source after the reports: a reader records a rejection before it reports a position above the rejected message, so the rejection is included
		out.LastRejected, src.Partitions = now.LastRejected, now.Partitions
	}
	if cfg, err := source.ParseConfig(src.Config); err == nil {
		if out.Type = cfg.Type; cfg.OnError != source.OnErrorSkip {
			out.DeadLetters = cfg.DeadLetters
		}
	}
	found, sums, listed := map[uint32]Partition{}, map[uint32]uint64{}, map[uint32]time.Duration{}
	for _, key := range slices.Sorted(maps.Keys(reports)) {
		for _, r := range reports[key] {
			if r.Number != src.Number {
				continue
			}
			if r.Failed != "" {
				out.Reason = name[key] + ": " + r.Failed
			}
			for partition, ms := range r.Listed {
				listed[partition] = max(listed[partition], time.Duration(ms)*time.Millisecond)
			}
			for partition, n := range r.Counted {
				sums[partition] += n
			}
			for _, p := range r.Partitions {
				p.Node = name[key]
				if before, twice := found[p.Partition]; !twice || ahead(&p, &before) {
					found[p.Partition] = p
				}
			}
		}
	}
	unread, late := cmp.Or(out.Reason, "no node reads it at the moment"), s.isLate(src.Number)
	if src.Paused {
		out.State, out.Reason = source.StatePaused, ""
		if src.Changing {
			out.Reason = "its last change is under way, or did not end: make it again, or resume the source"
		}
		clear(found)
		clear(listed)
	} else if len(found)+len(src.Partitions)+len(listed) == 0 {
		listed[0] = forever // every queue has partition 0
	}
	for partition := range src.Partitions {
		listed[partition] = forever
	}
	for partition, known := range listed {
		if _, is := found[partition]; is {
			continue
		}
		p := Partition{Partition: partition, State: out.State}
		if !src.Paused {
			p.Reason = unread
		}
		if !src.Paused && late && known > source.ListEvery+s.unread { // by then, the owner must have listed the partition too
			p.State = source.StateStalled
		}
		found[partition] = p
	}
	for _, partition := range slices.Sorted(maps.Keys(found)) {
		p := found[partition]
		p.Applied, p.Rejected = sums[partition], src.Partitions[partition].Rejected
		out.Partitions = append(out.Partitions, p)
	}
	s.complete(ctx, n, src, out.Partitions)
	out.sum()
	return out
}

// forever is the age of a partition that no node has listed.
const forever = time.Duration(math.MaxInt64)

// ahead reports whether the position of p is above that of other, a report about the same
// partition.
func ahead(p, other *Partition) bool {
	return p.Position != nil && (other.Position == nil || other.Position.Less(*p.Position))
}

// sum sets the fields of the source that combine its partitions.
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
