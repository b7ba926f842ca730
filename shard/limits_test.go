package shard

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/countd/countd/client/column"
	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/errs"
)

func setEverywhere(ctx context.Context, n *Node, name string, on bool) error {
	_, err := n.ChangeSetting(ctx, name, "everywhere", &catalog.Command{SetEverywhere: &catalog.SetEverywhereEntry{Keyspace: name, Everywhere: on}})
	return err
}

// TestLimits writes to a keyspace with limits, through each node, so that parts are checked locally and forwarded.
//
//  1. No row above the limit is created. The refusal names the keyspace, the limit and what there is.
//  2. A refused request applies nothing. Existing rows keep counting, and rows can be deleted.
//  3. A new limit takes effect, of rows or of bytes; 0 removes it. Rows above it stay.
func TestLimits(t *testing.T) {
	t.Parallel()
	all := openMembers(t, 3)
	ks, err := all[0].CreateKeyspace(t.Context(), Keyspace{Name: "songs", Columns: []string{"plays"}, Shards: 1, Limits: catalog.Limits{Rows: 10}})
	mustDo(t, err)
	if ks.Limits.Rows != 10 {
		t.Fatalf("the keyspace has the limits %+v", ks.Limits)
	}
	add := func(n *Node, ids ...uint64) error {
		w := &Write{Deadline: soon()}
		for _, id := range ids {
			w.Ops = append(rowOps(w), engine.Op{ID: id, Kind: engine.OpAdd, Cells: []engine.Cell{{Value: 1}}})
		}
		return n.Write(n.Keyspace("songs"), w)
	}
	checkLimits := func() {
		for _, n := range all {
			n.votersDisks.Check()
		}
	}
	limit := func(rows, bytes uint64) {
		t.Helper()
		_, err := all[1].ChangeSetting(t.Context(), "songs", "name", &catalog.Command{SetLimits: &catalog.SetLimitsEntry{Keyspace: "songs", Rows: &rows, Bytes: &bytes}})
		mustDo(t, err)
		checkLimits()
	}
	for _, n := range all {
		eventually(t, "each node knows the keyspace", func() bool { return n.Keyspace("songs") != nil })
	}
	for id := range uint64(7) {
		mustDo(t, add(all[0], 100+id))
	}
	checkLimits()
	for id := range uint64(10) {
		err := add(all[id%3], 100+id) // seven of these rows exist
		mustDo(t, err)
	}
	for round := range 2 { // before and after a check
		for i, n := range all {
			err := add(n, 100, 200+uint64(i))
			if limit, is := errors.AsType[*errs.LimitError](err); !is || limit.Text != "keyspace songs is at its limit of 10 rows, and has 10" {
				t.Errorf("round %d: a new row through node %d: %v", round, i, err)
			}
			var newRow *NewRowError
			if errors.As(err, &newRow) && newRow.Op != 1 {
				t.Errorf("the refused op is %d", newRow.Op)
			}
			mustDo(t, add(n, 100))
		}
		checkLimits()
	}
	row := []int64{0}
	mustDo(t, all[0].Get(ks, []uint64{100}, 1, &ReadOptions{Consistency: Linearizable, Deadline: soon()}, row))
	if row[0] != 8 {
		t.Errorf("row 100 counts %d, want 8: two before the limit, and six through it", row[0])
	}

	limit(12, 0)
	mustDo(t, add(all[0], 200))
	limit(5, 0)
	if err := add(all[0], 201); err == nil || !strings.Contains(fmt.Sprint(err), "limit of 5 rows, and has 11") {
		t.Errorf("a new row above a lower limit: %v", err)
	}
	limit(0, 1)
	if err := add(all[2], 201); err == nil || !strings.Contains(fmt.Sprint(err), "limit of 1 bytes of memory, and has ") {
		t.Errorf("a new row above a limit of bytes: %v", err)
	}
	mustDo(t, add(all[2], 200))
	limit(0, 0)
	mustDo(t, add(all[2], 201))

	for name, field := range map[string]string{"users": "", "unread": "name"} {
		one := uint64(1)
		_, err := all[0].ChangeSetting(t.Context(), name, "name", &catalog.Command{SetLimits: &catalog.SetLimitsEntry{Keyspace: name, Rows: &one}})
		argument, is := errors.AsType[*errs.ArgumentError](err)
		if is != (field != "") || is && argument.Field != field {
			t.Errorf("a limit of %s: %v", name, err)
		}
	}
	_, err = all[0].AddColumns(t.Context(), "songs", column.Named("likes"))
	mustDo(t, err)
}
