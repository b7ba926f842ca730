package shard

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/source/sink"
)

// whenRead is a stream that calls do before its end is read.
type whenRead struct {
	*bytes.Reader
	do func()
}

func (r *whenRead) Read(p []byte) (int, error) {
	if r.do != nil && r.Len() == 0 {
		r.do()
		r.do = nil
	}
	return r.Reader.Read(p)
}

// watched is the node of a restore that calls deleting before a row is deleted.
type watched struct {
	*Node
	deleting func()
}

func (w watched) Write(ks *Keyspace, write *Write) error {
	if ops, is := write.Ops.(*counters.Ops); is && (*ops)[0].Kind == engine.OpDelete {
		w.deleting()
	}
	return w.Node.Write(ks, write)
}

// From before a restore empties a shard until the restore has checked the shard, the shard applies no
// section of a source. The source then reads the messages after the backup again, once.
func TestRestoreClosesPositions(t *testing.T) {
	t.Parallel()
	n := openMembers(t, 1)[0]
	ctx, cancel := context.WithTimeout(t.Context(), eventuallyMax)
	defer cancel()
	const queue = numbered(60)
	s, err := SourcesOf(n).CreateSource(ctx, "numbers", json.RawMessage(`{}`), false)
	mustDo(t, err)
	mustDo(t, numbered(30).read(ctx, SourcesOf(n), s.Number, 10))
	ks := n.Keyspace("posts")
	number := ks.FirstGroup + 1
	backup, _ := taken(t, []*Node{n}, number)
	mustDo(t, queue.read(ctx, SourcesOf(n), s.Number, 10))
	closed := func() bool {
		t.Helper()
		_, err := SourcesOf(n).SourcePositions(ctx, s.Number, 0)
		if err != nil && !errors.Is(err, sink.ErrBusy) {
			t.Error(err)
		}
		return err != nil
	}

	deletes := false
	watching := watched{n, func() {
		if deletes = true; !closed() {
			t.Error("the shard takes sections of sources while its rows are deleted")
		}
	}}
	other, _ := taken(t, []*Node{n}, ks.FirstGroup)
	for name, stream := range map[string][]byte{"no snapshot": []byte("no snapshot"), "a snapshot of another shard": other} {
		if _, err = RestoreShard(ctx, watching, number, bytes.NewReader(stream), true, nil); deletes || !errors.Is(err, ErrBadSnapshot) || closed() {
			t.Errorf("a restore of %s: %v; it deletes rows: %v, closed: %v", name, err, deletes, closed())
		}
	}
	_, err = RestoreShard(ctx, watching, number, bytes.NewReader(backup[:len(backup)-1]), true, nil)
	if !deletes || !errors.Is(err, ErrBadSnapshot) || !closed() {
		t.Errorf("a restore of a snapshot that is cut: %v; it deletes rows: %v", err, deletes)
	}
	_, err = RestoreShard(ctx, n, number, &whenRead{bytes.NewReader(backup), func() {
		mustDo(t, n.Write(ks, once(&Write{Ops: counters.Ops{addTo(ks.Route().IDOf(1, 1000), uint8(ks.Column("like")), 1)}, Deadline: soon()})))
	}}, true, nil)
	if !errors.Is(err, ErrRestoredOther) || !closed() {
		t.Errorf("a restore beside a write: %v, and the shard is open", err)
	}
	facts, err := RestoreShard(ctx, n, number, bytes.NewReader(backup), true, nil)
	if err != nil || facts.Rows == 0 || closed() {
		t.Errorf("restored %+v, %v, closed: %v", facts, err, closed())
	}
	mustDo(t, queue.read(ctx, SourcesOf(n), s.Number, 10))
	queue.wantCounts(t, n, func(uint64) int64 { return 1 })

	// Positions are no part of what a restore compares: the source is gone by now.
	mustDo(t, deleteSource(ctx, n))
	again, err := RestoreShard(ctx, n, number, bytes.NewReader(backup), true, nil)
	if err != nil || again.Digest != facts.Digest {
		t.Errorf("restored %+v, %v; before, %+v", again, err, facts)
	}
}
