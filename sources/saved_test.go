package sources

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/countd/countd/admin"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/source"
)

// snapshots returns, by keyspace, a snapshot of each shard that accepts ops of messages. It calls
// between after each snapshot.
func (st *started) snapshots(between func()) map[string][][]byte {
	st.t.Helper()
	all := map[string][][]byte{}
	for _, ks := range st.node.Keyspaces() {
		if ks.Kind != kinds.Counters && ks.Kind != kinds.Unread {
			continue
		}
		for i := range ks.Shards {
			s := need(st.node.OpenSnapshot(st.t.Context(), ks.Groups[i]))(st.t)
			all[ks.Name] = append(all[ks.Name], need(io.ReadAll(s))(st.t))
			if err := s.Close(); err != nil {
				st.t.Fatal(err)
			}
			between()
		}
	}
	return all
}

// TestRestoredElsewhere: the shards of a source are restored into another cluster from snapshots
// that were taken at different times. Each shard continues from its own position, and every message
// counts once.
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
	need(a.put(""))(t)
	a.eventually("it is read", through(messages))
	saved := need(a.Save(ctx))(t)
	all := a.snapshots(func() {
		write()
		a.eventually("it is read", through(messages))
	})
	need(a.Pause(ctx, "likes"))(t)

	b := startCluster(t, 1, strings.Repeat("6", 32))
	b.queue = a.queue
	text := need(json.Marshal(saved[0]))(t)
	restored := need(b.RestoreSaved(ctx, text))(t)
	if restored.State != source.StatePaused {
		t.Errorf("it is made %+v", restored)
	}
	for name, shards := range all {
		for i, snapshot := range shards {
			if _, err := admin.RestoreShard(ctx, b.node, b.node.Keyspace(name).Groups[i], bytes.NewReader(snapshot), admin.RestoreOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	need(b.RestoreSaved(ctx, text))(t) // a repeat changes nothing
	need(b.Resume(ctx, "likes"))(t)
	b.eventually("all is read", through(messages))
	for id := uint64(1); id <= messages; id++ {
		if got := b.count(id); got != 1 {
			t.Errorf("message %d is counted %d times", id, got)
		}
	}

	need(b.Put(ctx, "other", []byte(strings.Replace(likes, "LIKES", "OTHER", 1)+"}")))(t)
	other := saved[0]
	other.Name = "other"
	other.Config = json.RawMessage(strings.Replace(string(other.Config), `"likes"`, `"other"`, 1))
	var refused *catalog.RefusedError
	if _, err := b.RestoreSaved(ctx, need(json.Marshal(other))(t)); !errors.As(err, &refused) {
		t.Errorf("a source of the name that is another: %v", err)
	}
	for body, field := range map[string]string{
		`{"name":"x","number":"0","config":{},"partitions":{}}`: "number", `{"x":1}`: "body",
		strings.Replace(string(text), `"since":1`, `"since":0`, 1): "partitions.0.since",
	} {
		var bad *errs.ArgumentError
		if _, err := b.RestoreSaved(ctx, []byte(body)); !errors.As(err, &bad) || bad.Field != field {
			t.Errorf("%s: %v", body, err)
		}
	}
}
