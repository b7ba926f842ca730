package shard

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/leadership"
)

// A node that was removed while it was down learns of its removal from a member, reports the
// removal, and keeps its files. A node that is still in the catalog, or never was, gets no such
// answer.
func TestReturnedNodeLearnsThatItWasRemoved(t *testing.T) {
	t.Parallel()
	all := openMembers(t, 4)
	gone := all[3]
	cfg := gone.cfg
	ctx, cancel := context.WithTimeout(t.Context(), eventuallyMax)
	defer cancel()
	mustDo(t, gone.Close(ctx))

	if unknown, err := all[1].membership.IsUnknown(ctx, all[0].cfg.NodeKey); err != nil || unknown {
		t.Errorf("a member is in the catalog: unknown %v, %v", unknown, err)
	}
	leave := &catalog.SetNodeStateEntry{Key: cfg.NodeKey, State: catalog.NodeLeaving}
	mustDo(t, all[0].catalogClient.MustChange(ctx, &catalog.Command{SetNodeState: leave}))
	mustDo(t, all[0].catalogClient.MustChange(ctx, &catalog.Command{RemoveNode: &catalog.RemoveNodeEntry{Key: cfg.NodeKey}}))

	cfg.Metrics = prometheus.NewRegistry()
	before := filesOf(t, cfg.Dir)
	again, err := Open(cfg)
	mustDo(t, err)
	t.Cleanup(func() { mustDo(t, again.Close(context.Background())) })
	eventually(t, "the node says that it was removed", func() bool { return errors.Is(again.Ready(), leadership.ErrRemoved) })
	for _, path := range before {
		if _, err := os.Stat(path); err != nil {
			t.Errorf("a removed node deletes nothing: %v", err)
		}
	}
}

// A node that has not joined its cluster yet does not report its removal.
func TestNodeThatWaitsToJoinWasNotRemoved(t *testing.T) {
	t.Parallel()
	openMembers(t, 1)
	n, err := Open(memberConfig(t, t.TempDir(), 2, 0))
	mustDo(t, err)
	t.Cleanup(func() { mustDo(t, n.Close(context.Background())) })
	if by := n.membership.RemovedBy(); by != "" {
		t.Errorf("%s says that a node without a cluster was removed", by)
	}
	if err := n.Ready(); err == nil || errors.Is(err, leadership.ErrRemoved) {
		t.Errorf("it is ready: %v", err)
	} else if !strings.Contains(err.Error(), "has not taken this node in yet") {
		t.Errorf("it waits for %v", err)
	}
}

// A node without keyspaces never reports that it waits for 0 nodes, or for fewer than there are.
func TestWaitsToBeginNamesWhatIsMissing(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		wanted, nodes int
		says          string
	}{
		{3, 1, "waits for 3 nodes to begin, there are 1"},
		{3, 3, "replays the catalog's log"},
		{0, 0, "replays the catalog's log"},
	} {
		n := &Node{}
		n.cfg.NodesWanted = test.wanted
		if got := n.waitsToBegin(test.nodes); !strings.Contains(got, test.says) {
			t.Errorf("%d of %d nodes: %q", test.nodes, test.wanted, got)
		}
	}
}

func filesOf(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "0*", "*"))
	mustDo(t, err)
	if len(files) == 0 {
		t.Fatal("the node has no files")
	}
	return files
}
