package shard

import (
	"context"
	"errors"
	"time"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/shard/sourcesink"
	"github.com/countd/countd/source/sink"
)

// Sink returns the sink of the readers of queues.
func (n *Node) Sink() sink.Sink { return n.sources }

// sourceWriteTimeout bounds a write of a source whose caller has no deadline.
const sourceWriteTimeout = 10 * time.Second

// nodeSources is the sourcesink.World of a node.
type nodeSources struct{ node *Node }

func (n nodeSources) View() *catalog.View { return n.node.catalog.View() }

func (n nodeSources) Keyspaces() []*Keyspace { return n.node.Keyspaces() }

func (n nodeSources) CatchUp(ctx context.Context) error { return n.node.CatchUp(ctx) }

func (n nodeSources) Change(ctx context.Context, command *catalog.Command) (*catalog.Result, error) {
	return n.node.Change(ctx, command)
}

func (n nodeSources) Send(ctx context.Context, s *sourcesink.Write) {
	w := &Write{Ops: s.Ops, Spaces: s.Spaces, In: s.In, sections: make([]*RequestID, len(s.Sections))}
	for slot, section := range s.Sections {
		if section != nil {
			id := dedup.BySource(*section)
			w.sections[slot], w.ID = &id, id
		}
	}
	w.Deadline = time.Now().Add(sourceWriteTimeout)
	if until, ok := ctx.Deadline(); ok {
		w.Deadline = until
	}
	var err error
	if err = ctx.Err(); err == nil {
		err = n.node.Write(s.Spaces[0], w)
	}
	if s.Answers = w.answers; s.Answers == nil { // nothing was proposed
		s.Answers = make([]sourcesink.Answer, len(s.Sections))
		for i := range s.Answers {
			s.Answers[i].Err = errors.Join(err, errNothingProposed)
		}
	}
	for _, o := range w.Overflows {
		s.Overflows = append(s.Overflows, o.Op)
	}
}

// errNothingProposed is joined with the error of a write that was refused as a whole.
var errNothingProposed = errors.New("nothing was written")
