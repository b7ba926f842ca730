package backup

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/countd/countd/client"
	"github.com/countd/countd/client/admin"
	"github.com/countd/countd/internal/must"
)

// memCluster is a Cluster in memory. The snapshots of its shards have any bytes.
type memCluster struct {
	id        string
	index     uint64 // of all snapshots
	keyspaces []client.Keyspace
	groups    map[string]uint32
	states    map[uint32][]byte // by group
	cut       map[uint32]int    // how often a snapshot of the group ends early
}

// newMemCluster returns a cluster with a keyspace of kind counters.
func newMemCluster(shards int) *memCluster {
	c := &memCluster{id: strings.Repeat("c1", 16), index: 1, groups: map[string]uint32{}, states: map[uint32][]byte{}, cut: map[uint32]int{}}
	c.keyspaces = []client.Keyspace{{Name: "posts", Kind: KindCounters, Columns: []string{"like"}, Shards: shards}}
	for shard := range shards {
		number := uint32(shard + 1)
		c.groups[GroupName("posts", shard)], c.states[number] = number, []byte{byte(shard)}
	}
	return c
}

func (c *memCluster) ID(context.Context) (string, error) { return c.id, nil }
func (c *memCluster) Keyspaces(context.Context) ([]client.Keyspace, error) {
	return append([]client.Keyspace{}, c.keyspaces...), nil
}
func (c *memCluster) Groups(context.Context) (map[string]uint32, error)    { return c.groups, nil }
func (c *memCluster) Sources(context.Context) ([]admin.SavedSource, error) { return nil, nil }
func (c *memCluster) Snapshot(_ context.Context, group uint32) (*Snapshot, error) {
	state := c.states[group]
	in := io.Reader(bytes.NewReader(state))
	if c.cut[group] > 0 {
		c.cut[group]--
		in = io.LimitReader(in, int64(len(state)/2))
	}
	return &Snapshot{
		ReadCloser: io.NopCloser(in), Bytes: int64(len(state)), Index: c.index, Rows: uint64(len(state)),
		Digest: strings.Repeat("0", 16), Modulus: c.keyspaces[0].Shards,
	}, nil
}

// A backup fails if a keyspace was created with another number of shards than the manifest assumes.
func TestBackupChecksTheShardsOfTheCreation(t *testing.T) {
	c := newMemCluster(6)
	for _, k := range []Keyspace{
		{Name: "posts", Shards: 6, CreatedShards: 2},
		{Name: "posts", Shards: 2},
		{Name: "posts", Shards: 6},
		{Name: "posts", Shards: 6, CreatedShards: 6},
	} {
		taking := taking{cluster: c}
		err := taking.addColumns(t.Context(), &Manifest{Keyspaces: []Keyspace{k}}, c.groups)
		if bad := k.Divisor() != 6; (err != nil) != bad || bad && !strings.Contains(err.Error(), "it was created with 6 shards, not 2") {
			t.Errorf("%+v: %v", k, err)
		}
	}
}

// A snapshot that ends early is stored again. It is never described as whole.
func TestACutSnapshotIsTakenAgain(t *testing.T) {
	c := newMemCluster(2)
	c.states[2] = []byte("the second shard")
	c.cut[2] = 1
	stored := map[string]string{}
	tries := 0
	m, err := Take(t.Context(), c, func(_ context.Context, f *File, in io.Reader) error {
		tries++
		text, err := io.ReadAll(in)
		stored[f.Name] = string(text)
		return err
	}, Report{})
	must.Do(t, err)
	if got := stored["posts-01.snapshot"]; tries != 3 || got != "the second shard" {
		t.Errorf("%d tries, stored %q", tries, got)
	}
	f := m.Keyspaces[0].Files[1]
	b := Backup{Manifest: m, open: func(_ context.Context, f *File) (io.ReadCloser, error) {
		return io.NopCloser(strings.NewReader(stored[f.Name])), nil
	}}
	must.Do(t, b.Check(t.Context(), &f))
	stored[f.Name] = "the second Shard"
	if err := b.Check(t.Context(), &f); !errors.Is(err, ErrIncomplete) {
		t.Errorf("a changed file: %v", err)
	}
}

// A backup fails if its store returns before the end of a snapshot.
func TestAStoreReadsTheWholeSnapshot(t *testing.T) {
	c := newMemCluster(1)
	c.states[1] = []byte("state")
	for read := range 6 {
		_, err := Take(t.Context(), c, func(_ context.Context, _ *File, in io.Reader) error {
			_, err := io.CopyN(io.Discard, in, int64(read))
			return err
		}, Report{})
		if whole := read == 5; (err == nil) != whole || !whole && !strings.Contains(err.Error(), "before the end of the snapshot") {
			t.Errorf("%d bytes read: %v", read, err)
		}
	}
}
