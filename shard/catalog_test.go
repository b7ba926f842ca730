package shard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/shard/errs"
)

// However many callers create keyspaces concurrently, the bounds on keyspaces and shards
// hold, and the errors name the bound.
func TestBoundsOfACluster(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		others int // keyspaces on another node
		shards int // number of shards of each keyspace on the other node
		ask    int // shards that the request asks for
		field  string
		bound  string
	}{
		{"keyspaces", catalog.KeyspacesMax - len(kinds.Builtin) - 1, 1, 1, "name", fmt.Sprint(catalog.KeyspacesMax)},
		{"shards", (catalog.GroupsMax - 5) / 60, 60, catalog.GroupsMax - 5 - (catalog.GroupsMax-5)/60*60, "shards", fmt.Sprint(catalog.GroupsMax)},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := openNode(t, t.TempDir(), map[string]int{"posts": 1, "users": 1})
			elsewhere := catalog.Node{Key: "n2.0", Name: "n2", ClusterAddr: "127.0.0.1:1", VersionMax: n.record().VersionMax}
			mustDo(t, n.catalogClient.MustChange(t.Context(), &catalog.Command{PutNode: &catalog.PutNodeEntry{Node: elsewhere}}))
			for i := range test.others {
				mustDo(t, n.catalogClient.MustChange(t.Context(), &catalog.Command{Create: &catalog.CreateEntry{
					Keyspace: catalog.Keyspace{Name: fmt.Sprintf("other%d", i), Kind: kinds.Counters, Columns: []string{"a"}, Divisor: test.shards},
					Replicas: slices.Repeat([][]string{{"n2.0"}}, test.shards),
				}}))
			}
			failed := make([]error, 3) // room for one
			var wg sync.WaitGroup
			for i := range failed {
				wg.Go(func() {
					_, failed[i] = n.CreateKeyspace(t.Context(), Keyspace{Name: fmt.Sprintf("k%d", i), Columns: []string{"a"}, Shards: test.ask})
				})
			}
			wg.Wait()
			made := 0
			for _, err := range failed {
				var argument *errs.ArgumentError
				switch {
				case err == nil:
					made++
				case !errors.As(err, &argument) || argument.Field != test.field || !strings.Contains(argument.Problem, test.bound):
					t.Errorf("told %v", err)
				}
			}
			if made != 1 {
				t.Errorf("%d were made", made)
			}
		})
	}
}

// A request for a keyspace waits while the cluster waits for more nodes. The keyspace's groups then
// begin with three voters. If the deadline passes before that, the request changes nothing.
func TestCreateKeyspaceBeforeTheClusterBegins(t *testing.T) {
	t.Parallel()
	first := joinMember(t, nil, 1, 3)
	all := []*Node{first}
	early := Keyspace{Name: "early", Columns: []string{"a"}, Shards: 1}
	const waits = "waits for 3 nodes to begin, there are 1"
	eventually(t, "the node knows that it waits", func() bool { return strings.Contains(fmt.Sprint(first.Ready()), waits) })
	short, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if _, err := first.CreateKeyspace(short, early); !errors.Is(err, errs.ErrNoLeader) || !strings.Contains(err.Error(), waits) {
		t.Errorf("created: %v", err)
	}
	made := make(chan error, 1)
	go func() {
		_, err := first.CreateKeyspace(t.Context(), early)
		made <- err
	}()
	for i := 2; i <= 3; i++ {
		all = append(all, joinMember(t, all, i, 3))
	}
	if err := <-made; err != nil {
		t.Fatal(err)
	}
	view := first.Catalog()
	if target := view.Groups[view.Keyspaces["early"].Groups[0]].Target; len(target) != 3 {
		t.Errorf("it begins on %v", target)
	}
}
