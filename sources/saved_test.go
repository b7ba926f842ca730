package sources

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/source"
)

// snapshots returns a snapshot of each shard, by keyspace, that takes messages.
func (st *started) snapshots(between func()) map[string][][]byte {
	st.t.Helper()
	all := map[string][][]byte{}
	for _, ks := range st.node.Keyspaces() {
		if ks.Kind != shard.KindCounters && ks.Kind != shard.KindUnread {
			continue
		}
		for i := range ks.Shards {
			s := must(st.node.OpenSnapshot(st.t.Context(), ks.FirstGroup+uint32(i)))(st.t)
			all[ks.Name] = append(all[ks.Name], must(io.ReadAll(s))(st.t))
			if err := s.Close(); err != nil {
				st.t.Fatal(err)
			}
			between()
		}
	}
	return all
}

// TestRestoredElsewhere: shards that are restored into another cluster, from snapshots of different
// moments, continue a source each where it was: every message counts once.
func TestRestoredElsewhere(t *testing.T) {
	a, ctx := start(t, 1), t.Context()
	messages := uint64(0)
	write := func() {
		for range 20 {
			messages++
			a.queue.add(0, like(messages))
		}
	}
	write()
	must(a.put(""))(t)
	a.eventually("it is read", through(messages))
	saved := must(a.Save(ctx))(t)
	all := a.snapshots(func() {
		write()
		a.eventually("it is read", through(messages))
	})
	must(a.Pause(ctx, "likes"))(t)

	b := startCluster(t, 1, strings.Repeat("6", 32))
	b.queue = a.queue
	text := must(json.Marshal(saved[0]))(t)
	restored := must(b.RestoreSaved(ctx, text))(t)
	if restored.State != source.StatePaused {
		t.Errorf("it is made %+v", restored)
	}
	for name, shards := range all {
		for i, snapshot := range shards {
			if _, err := b.node.RestoreShard(ctx, b.node.Keyspace(name).FirstGroup+uint32(i), bytes.NewReader(snapshot), shard.RestoreOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	must(b.RestoreSaved(ctx, text))(t) // again
	must(b.Resume(ctx, "likes"))(t)
	b.eventually("all is read", through(messages))
	for id := uint64(1); id <= messages; id++ {
		if got := b.count(id); got != 1 {
			t.Errorf("message %d is counted %d times", id, got)
		}
	}

	must(b.Put(ctx, "other", []byte(strings.Replace(likes, "LIKES", "OTHER", 1)+"}")))(t)
	other := saved[0]
	other.Name = "other"
	other.Config = json.RawMessage(strings.Replace(string(other.Config), `"likes"`, `"other"`, 1))
	var refused *catalog.RefusedError
	if _, err := b.RestoreSaved(ctx, must(json.Marshal(other))(t)); !errors.As(err, &refused) {
		t.Errorf("a source of the name that is another: %v", err)
	}
	for body, field := range map[string]string{
		`{"name":"x","number":"0","config":{},"partitions":{}}`: "number", `{"x":1}`: "body",
		strings.Replace(string(text), `"since":1`, `"since":0`, 1): "partitions.0.since",
	} {
		var bad *shard.ArgumentError
		if _, err := b.RestoreSaved(ctx, []byte(body)); !errors.As(err, &bad) || bad.Field != field {
			t.Errorf("%s: %v", body, err)
		}
	}
}
