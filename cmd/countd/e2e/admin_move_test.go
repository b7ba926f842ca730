package e2e

import (
	"fmt"
	"slices"
	"testing"

	"github.com/countd/countd/internal/proctest"
)

// TestAdminMoveIsTakenBack orders the move of a replica to a node that was just killed, before
// gossip knows of the death, and then withdraws the order. The group must have its earlier voters,
// without the dead node.
func TestAdminMoveIsTakenBack(t *testing.T) {
	long(t)
	beside(t)
	c := newCluster(t, proctest.Options{Nodes: voters + 1})
	const group = 1
	before := c.AwaitSettled(c.Nodes()[0], group, voters)
	nodeOf := func(in bool) *proctest.Member {
		nodes := c.Nodes()
		return nodes[slices.IndexFunc(nodes, func(n *proctest.Member) bool { return slices.Contains(before.Voters, n.Name) == in })]
	}
	from, to := nodeOf(true), nodeOf(false)
	eventually(t, "the move is ordered", func() bool {
		to.Kill()
		if refused := from.OrderMove(group, from, to); refused == "" {
			return true
		}
		to.StartReady()
		return false
	})
	from.MustCtl("group", "move", fmt.Sprint(group), to.Name, from.Name)
	after := c.AwaitSettled(from, group, voters)
	if !slices.Equal(slices.Sorted(slices.Values(after.Voters)), slices.Sorted(slices.Values(before.Voters))) {
		t.Errorf("group %d had voters %v and has %v", group, before.Voters, after.Voters)
	}
}
