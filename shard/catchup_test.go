package shard

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/countd/countd/client/column"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/rpc"
)

// When AddColumns returns, the other nodes know the new column. An exception is a call that
// returned only after rpc.AskTimeout, because another node did not confirm in time.
func TestKeyspacesAreKnownEverywhere(t *testing.T) {
	t.Parallel()
	all := openMembers(t, 3)
	_, err := all[0].CreateKeyspace(t.Context(), Keyspace{Name: "likes", Columns: []string{"c"}, Shards: 1})
	mustDo(t, err)
	for i, told := 0, 0; told < 9; i++ {
		began := time.Now()
		made, err := all[i%3].AddColumns(t.Context(), "likes", column.Named(fmt.Sprintf("c%d", i)))
		mustDo(t, err) // fails if so many answers were late that the keyspace has too many columns
		took := time.Since(began)
		if took >= rpc.AskTimeout {
			continue
		}
		told++
		for _, n := range all {
			if k := n.Keyspace("likes"); k == nil || len(k.Columns) < len(made.Columns) {
				t.Errorf("%s, asked after %s had answered in %v, knows %+v", n.cfg.NodeName, all[i%3].cfg.NodeName, took, k)
			}
		}
	}
}

// A node that missed a change knows it after CatchUp; without a leader CatchUp fails.
func TestCatchUp(t *testing.T) {
	t.Parallel()
	all := openMembers(t, 3)
	for i := range 9 {
		by, asked := all[i%3], all[(i+1)%3]
		name := fmt.Sprintf("k%d", i)
		mustDo(t, by.catalogClient.MustChange(t.Context(), &catalog.Command{Create: &catalog.CreateEntry{Keyspace: catalog.Keyspace{
			Name: name, Kind: kinds.Counters, Columns: []string{"c"}, Divisor: 1,
		}}}))
		mustDo(t, asked.CatchUp(t.Context()))
		if asked.Keyspace(name) == nil {
			t.Errorf("%s does not know what %s has made", asked.cfg.NodeName, by.cfg.NodeName)
		}
	}
	mustDo(t, all[0].Close(t.Context())) // the catalog's only voter; no controller here adds more
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if err := all[1].CatchUp(ctx); !errors.Is(err, errs.ErrNoLeader) {
		t.Errorf("without the catalog's leader: %v", err)
	}
}
