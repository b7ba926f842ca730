package feed

import (
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
)

// Kind is raftfsm.Kind of feeds.
type Kind struct{}

func (Kind) Number() codec.Kind                             { return codec.KindFeed }
func (Kind) New(p raftfsm.Places) raftfsm.Machine           { return New(p.Bodies) }
func (Kind) TakesSources() bool                             { return false }
func (Kind) Walk(see *raftfsm.SnapshotVisitor) raftfsm.Walk { return &walk{see: see} }

// Check implements raftfsm.Kind. The visitor receives each *Op as a body.
func (Kind) Check(id *dedup.RequestID, p []byte, see *raftfsm.SectionVisitor) (ops int, clocked bool, err error) {
	var f contents
	if ops, err = f.Decode(id, p, true); err != nil {
		return ops, false, err
	}
	f.batch.link()
	for i := 0; see.Body != nil && i < ops; i++ {
		if err := see.Body(f.batch.ops[i].User, &f.batch.ops[i]); err != nil {
			return ops, false, err
		}
	}
	return ops, false, nil
}

// walk visits a snapshot. Its bodies are *Feed.
type walk struct {
	see   *raftfsm.SnapshotVisitor
	feeds reader
	rows  uint64
}

func (w *walk) Section(_ *codec.StreamReader, kind byte, p []byte) error {
	if kind != codec.StreamFeeds {
		return raftfsm.Misplaced(kind)
	}
	return w.feeds.section(p, func(user uint64, feed *Feed) error {
		w.rows++
		if w.see.Body == nil {
			return nil
		}
		return w.see.Body(user, feed)
	})
}

func (w *walk) Facts(f *raftfsm.SnapshotFacts) { f.Rows = w.rows }
