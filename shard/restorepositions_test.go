package shard

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/shard/restore"
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
	restoring
	deleting func()
}

func (w watched) Write(write *restore.Write) error {
	if len(write.Ops) > 0 && write.Ops[0].Kind == engine.OpDelete {
		w.deleting()
	}
	return w.restoring.Write(write)
}

// A shard applies no section of a source from before the restore empties it until the restore has checked
// it. The source then reads the messages after the backup again, once.
func TestRestoreClosesPositions(t *testing.T) {
	t.Parallel()
	n := openMembers(t, 1)[0]
	ctx, cancel := context.WithTimeout(t.Context(), eventuallyMax)
	defer cancel()
	const queue = numbered(60)
	s, err := n.CreateSource(ctx, "numbers", json.RawMessage(`{}`), false)
	mustDo(t, err)
	mustDo(t, numbered(30).read(ctx, n.Sink(), s.Number, 10))
	ks := n.Keyspace("posts")
	number := ks.FirstGroup + 1
	backup, _ := taken(t, []*Node{n}, number)
	mustDo(t, queue.read(ctx, n.Sink(), s.Number, 10))
	closed := func() bool {
		t.Helper()
		_, err := n.SourcePositions(ctx, s.Number, 0)
		if err != nil && !errors.Is(err, sink.ErrBusy) {
			t.Error(err)
		}
		return err != nil
	}

	g, deletes := n.registry.shardOf(number), false
	cfg := restore.Config{
		Keyspace: ks, Shard: g.shard, Kind: g.kind, Catalog: n.catalog, CatchUp: n.CatchUp, Draining: &n.draining,
		Node: watched{restoring{n, ks, g}, func() {
			if deletes = true; !closed() {
				t.Error("the shard takes sections of sources while its rows are deleted")
			}
		}},
	}
	other, _ := taken(t, []*Node{n}, ks.FirstGroup)
	for name, stream := range map[string][]byte{"no snapshot": []byte("no snapshot"), "a snapshot of another shard": other} {
		if _, err = restore.Shard(ctx, cfg, bytes.NewReader(stream), RestoreOptions{Force: true}); deletes || !errors.Is(err, ErrBadSnapshot) || closed() {
			t.Errorf("a restore of %s: %v; it deletes rows: %v, closed: %v", name, err, deletes, closed())
		}
	}
	_, err = restore.Shard(ctx, cfg, bytes.NewReader(backup[:len(backup)-1]), RestoreOptions{Force: true})
	if !deletes || !errors.Is(err, ErrBadSnapshot) || !closed() {
		t.Errorf("a restore of a snapshot that is cut: %v; it deletes rows: %v", err, deletes)
	}
	_, err = n.RestoreShard(ctx, number, &whenRead{bytes.NewReader(backup), func() {
		mustDo(t, n.Write(ks, once(&Write{Ops: []engine.Op{addTo(n.registry.shardOf(number).route.IDOf(1, 1000), uint8(ks.Column("like")), 1)}, Deadline: soon()})))
	}}, RestoreOptions{Force: true})
	if !errors.Is(err, ErrRestoredOther) || !closed() {
		t.Errorf("a restore beside a write: %v, and the shard is open", err)
	}
	facts, err := n.RestoreShard(ctx, number, bytes.NewReader(backup), RestoreOptions{Force: true})
	if err != nil || facts.Rows == 0 || closed() {
		t.Errorf("restored %+v, %v, closed: %v", facts, err, closed())
	}
	mustDo(t, queue.read(ctx, n.Sink(), s.Number, 10))
	queue.wantCounts(t, n, func(uint64) int64 { return 1 })

	// Positions are no part of what a restore compares: the source is gone by now.
	mustDo(t, deleteSource(ctx, n))
	again, err := n.RestoreShard(ctx, number, bytes.NewReader(backup), RestoreOptions{Force: true})
	if err != nil || again.Digest != facts.Digest {
		t.Errorf("restored %+v, %v; before, %+v", again, err, facts)
	}
}
