package proctest

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/countd/countd/client/admin"
)

// adminTimeout is longer than a node needs to query all others and to apply an order.
const adminTimeout = 5 * time.Second

// Placed is the placement of a group's replicas, as the cluster reports it.
type Placed struct {
	ID       uint32
	Keyspace string
	Shard    int
	Leader   string // "" if no leader answers
	Target   []string
	Voters   []string
}

// Settled reports whether the group's voters are its target.
func (p Placed) Settled() bool {
	return slices.Equal(slices.Sorted(slices.Values(p.Voters)), slices.Sorted(slices.Values(p.Target)))
}

// Placed returns the placement of all groups as a node reports it, or nil if the node does not
// answer.
func (n *Member) Placed() []Placed {
	var answer struct{ Groups []Placed }
	if status, err := n.admin(http.MethodGet, "groups", nil, &answer); err != nil || status != http.StatusOK {
		return nil
	}
	return answer.Groups
}

func (n *Member) admin(method, what string, body, answer any) (status int, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
	defer cancel()
	return n.Send(ctx, method, "/v1/admin/"+what, nil, body, answer)
}

// PlacedAt is like Placed, but for one group; nil if the group is unknown.
func (n *Member) PlacedAt(group uint32) *Placed {
	all := n.Placed()
	if i := slices.IndexFunc(all, func(p Placed) bool { return p.ID == group }); i >= 0 {
		return &all[i]
	}
	return nil
}

// OrderMove sends an order to a node: to move a replica of the group. It returns the reason of a
// refusal, or "".
func (n *Member) OrderMove(group uint32, from, to *Member) (refused string) {
	var a answer
	body := map[string]string{"from": from.Name, "to": to.Name}
	status, err := n.admin(http.MethodPost, fmt.Sprintf("groups/%d/move", group), body, &a)
	switch {
	case err != nil:
		return err.Error()
	case status != http.StatusOK:
		return fmt.Sprintf("status %d: %s", status, a.Error.Message)
	}
	return ""
}

// Move orders the move of a replica through the node at, and waits until the move is complete.
func (c *Cluster) Move(at *Member, group uint32, from, to *Member) {
	c.t.Helper()
	c.await(func() string {
		p := at.PlacedAt(group)
		switch {
		case p == nil:
			return fmt.Sprintf("%s does not know group %d", at.Name, group)
		case slices.Contains(p.Target, from.Name):
			if refused := at.OrderMove(group, from, to); refused != "" {
				return fmt.Sprintf("the move of group %d from %s to %s is refused: %s", group, from.Name, to.Name, refused)
			}
			return "the move has just begun"
		case !p.Settled():
			return fmt.Sprintf("group %d has voters %v and is to have %v", group, p.Voters, p.Target)
		}
		return ""
	})
}

// AwaitReplica waits until a node holds a replica of a group or, if held is false, until the node
// holds none.
func (c *Cluster) AwaitReplica(n *Member, group uint32, held bool) time.Duration {
	c.t.Helper()
	return c.await(func() string {
		s, err := n.status(c.t.Context())
		if err != nil {
			return fmt.Sprintf("%s does not answer: %v", n.Name, err)
		}
		if slices.ContainsFunc(s.Groups, func(g admin.Group) bool { return g.ID == group }) != held {
			return fmt.Sprintf("that %s holds a replica of group %d is %v", n.Name, group, !held)
		}
		return ""
	})
}

// AwaitSettled waits until a group has the given number of voters, and its target names exactly
// these voters.
func (c *Cluster) AwaitSettled(at *Member, group uint32, voters int) (p *Placed) {
	c.t.Helper()
	c.await(func() string {
		if p = at.PlacedAt(group); p == nil || !p.Settled() || len(p.Voters) != voters {
			return fmt.Sprintf("group %d is not settled with %d voters: %+v", group, voters, p)
		}
		return ""
	})
	return p
}
