package tiering

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/rpc"
)

// This file has the jobs that operators order on all nodes. An order only starts a job on each
// node; queue.go runs it.

const (
	// ColdOlderMin and ColdOlderMax bound OlderThan. --cold-after has the same bounds.
	ColdOlderMin = time.Second
	ColdOlderMax = 100 * 365 * 24 * time.Hour
)

// ColdVerb is what a TieringJob does.
type ColdVerb string

const (
	ColdMigrate ColdVerb = "migrate" // move rows out of memory
	ColdStop    ColdVerb = "stop"    // end the running migration
)

// TieringJob is an operator's order to all nodes about their rows on disk.
type TieringJob struct {
	ID       string   `json:"id"` // hash of the order: equal orders have equal ids
	Verb     ColdVerb `json:"verb"`
	Keyspace string   `json:"keyspace,omitempty"` // "" for all
	DryRun   bool     `json:"dry_run,omitempty"`  // only return the answers

	// If Before is not 0, a row moves if its id is a number less than Before. Otherwise a row moves if it is
	// older than OlderThan, by the time in its id or, for a text, by when its number was given. If OlderThan is
	// 0 too, Config.Cold.After replaces it.
	Before    uint64        `json:"before,omitempty"`
	OlderThan time.Duration `json:"older_than,omitempty"`
}

// ColdAnswer is one node's answer to an order.
type ColdAnswer struct {
	Rows    uint64 `json:"rows"`              // rows to move, approximately
	Refused string `json:"refused,omitempty"` // why the node refuses to start the job
	Never   bool   `json:"never,omitempty"`   // no row would ever move: neither the order nor the node's settings have an age
}

// ColdRefusedError is returned if a node refuses the order. No node has started the job.
type ColdRefusedError struct{ Node, Reason string }

func (e *ColdRefusedError) Error() string { return e.Node + ": " + e.Reason }

// ColdSilentError is returned if the deadline passed before all nodes had answered the dry run. No
// node has started the job.
type ColdSilentError struct{ Nodes []string } // names of the nodes without an answer

func (e *ColdSilentError) Error() string {
	return fmt.Sprintf("the deadline passed before these nodes answered, for which %v are allowed: %s; nothing was begun", rpc.AskTimeout, strings.Join(e.Nodes, ", "))
}

// unanswered returns a ColdSilentError with the nodes that are not in answers.
func (t *Tiering) unanswered(answers map[string]ColdAnswer) error {
	e := &ColdSilentError{}
	for key, node := range t.cfg.Catalog.View().Nodes {
		if _, answered := answers[key]; !answered {
			e.Nodes = append(e.Nodes, node.Name)
		}
	}
	slices.Sort(e.Nodes)
	return e
}

// Order first makes a dry run, and then starts a job on all nodes unless a node refuses. If
// o.DryRun is set, Order ends after the dry run. An order to stop has no dry run. It returns the
// answers by node key, and does not wait for the jobs to end. A node that already runs the same
// order continues. For an invalid order, Order returns an ArgumentError or ErrUnknownKeyspace. If
// ctx ends during the dry run, Order returns a ColdSilentError, and no node has started the job.
// After the dry run, Order may take up to rpc.AskTimeout even if ctx ends, so that a short ctx does
// not start the job on some nodes only.
func (t *Tiering) Order(ctx context.Context, o TieringJob) (id string, answers map[string]ColdAnswer, err error) {
	if err := t.checkCold(&o); err != nil {
		return "", nil, err
	}
	o.ID = o.name()
	if o.Verb != ColdStop {
		look := o
		look.DryRun = true
		answers = t.askCold(ctx, look)
		if ctx.Err() != nil {
			return "", nil, t.unanswered(answers)
		}
		for _, key := range slices.Sorted(maps.Keys(answers)) {
			if why := answers[key].Refused; why != "" {
				return "", nil, &ColdRefusedError{key, why}
			}
		}
		if allNever(answers) {
			return "", nil, &errs.ArgumentError{Field: "older_than_seconds", Problem: "no row is ever old by --cold-after 0: give it, or before"}
		}
		if o.DryRun {
			return "", answers, nil
		}
	}
	return o.ID, t.askCold(context.WithoutCancel(ctx), o), nil
}

// name returns the id of an order, see TieringJob.ID.
func (o TieringJob) name() string {
	o.ID, o.DryRun = "", false
	text, err := json.Marshal(o)
	if err != nil {
		panic(err) // impossible: a job has only numbers and texts
	}
	h := fnv.New64a()
	_, _ = h.Write(text) // never fails
	return fmt.Sprintf("%016x", h.Sum64())
}

// allNever reports whether Never is set in all answers.
func allNever(answers map[string]ColdAnswer) bool {
	for _, a := range answers {
		if !a.Never {
			return false
		}
	}
	return len(answers) > 0
}

// checkCold returns an error for an order that is invalid on all nodes.
func (t *Tiering) checkCold(o *TieringJob) error {
	if o.Keyspace == "" {
		return nil
	}
	ks, there := t.cfg.Catalog.View().Keyspaces[o.Keyspace]
	switch {
	case !there:
		return errs.ErrUnknownKeyspace
	case !kinds.All.Traits(ks.Kind).ColdRows:
		return &errs.ArgumentError{Field: "keyspace", Problem: fmt.Sprintf("rows of %s, of kind %s, are always in memory", ks.Name, ks.Kind)}
	case o.Before > 0 && ks.Names != "":
		return &errs.ArgumentError{Field: "before", Problem: fmt.Sprintf("ids of %s are texts, of which none is before another: give older_than_seconds", ks.Name)}
	case o.OlderThan > 0 && !t.hasAge(&Shard{Keyspace: o.Keyspace}):
		return &errs.ArgumentError{Field: "older_than_seconds", Problem: fmt.Sprintf("ids of %s carry no time (--id-layout): give before", ks.Name)}
	}
	return nil
}

// askCold returns the answers of the nodes that answer within rpc.AskTimeout.
func (t *Tiering) askCold(ctx context.Context, o TieringJob) map[string]ColdAnswer {
	return rpc.AskAllJSON(ctx, t.calls, t.cfg.Key, maps.Keys(t.cfg.Catalog.View().Nodes), methodColdOrder, o, t.followCold)
}

// followCold starts or stops the job on this node. For a dry run it only counts the rows to move.
func (t *Tiering) followCold(_ context.Context, o TieringJob) (ColdAnswer, error) {
	if o.Verb == ColdStop {
		t.Queue.stop()
		return ColdAnswer{}, nil
	}
	if o.Verb != ColdMigrate {
		return ColdAnswer{Refused: fmt.Sprintf("it knows no order to %s", o.Verb)}, nil
	}
	a := ColdAnswer{Never: o.Before == 0 && o.OlderThan == 0 && t.cfg.Cold.After == 0}
	for _, l := range t.Leaving(o.isFor) {
		a.Rows += uint64(l.FSM.Aged(t.agedBy(&o, l.Shard)))
	}
	switch {
	case t.cfg.Draining.Load():
		a.Refused = "it is stopping"
	case t.cfg.Headroom.DiskFull.Load():
		a.Refused = "its disk has no room"
	default:
		a.Refused = t.Queue.begin(o, a.Rows)
	}
	return a, nil
}

// isFor reports whether the order concerns a shard.
func (o *TieringJob) isFor(s *Shard) bool { return o.Keyspace == "" || o.Keyspace == s.Keyspace }

// agedBy returns a function that reports whether the order moves a range of keys of a shard.
func (t *Tiering) agedBy(o *TieringJob, s *Shard) func(first, last uint64) bool {
	after := t.cfg.Cold.After
	switch {
	case o.Before > 0:
		below := o.Before / s.PerKey
		if name, _ := t.namesOf(s); name != "" {
			below = 0 // an order for all keyspaces
		}
		return func(_, last uint64) bool { return last < below }
	case o.OlderThan > 0:
		after = o.OlderThan
	case after == 0:
		return func(uint64, uint64) bool { return false }
	}
	return t.old(s, after)
}
