package proctest

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/countd/countd/client/admin"
)

// view contains the status of each node that answered, and the replicas of each group by node.
type view struct {
	status   map[*Member]ClusterStatus
	replicas map[uint32]map[*Member]admin.Group
}

// look requests the status of one node after the other.
func look(nodes []*Member) view {
	v := view{status: map[*Member]ClusterStatus{}, replicas: map[uint32]map[*Member]admin.Group{}}
	for _, n := range nodes {
		s, err := n.status(context.Background())
		if err != nil {
			continue
		}
		v.status[n] = s
		for _, g := range s.Groups {
			if v.replicas[g.ID] == nil {
				v.replicas[g.ID] = map[*Member]admin.Group{}
			}
			v.replicas[g.ID][n] = g
		}
	}
	return v
}

// leader returns the node that reports to lead a group, or nil. If several nodes report this, it
// returns the one with the latest term.
func (v view) leader(group uint32) (leader *Member, term uint64) {
	for n, g := range v.replicas[group] {
		if g.Role == "leader" && g.Term >= term {
			leader, term = n, g.Term
		}
	}
	return leader, term
}

// AwaitVoters waits until each group has a leader, the given number of voters, and no other members
// or replicas. The catalog and the board may have further members and replicas. It ignores what the
// excluded nodes report.
func (c *Cluster) AwaitVoters(voters int, excluded ...*Member) time.Duration {
	c.t.Helper()
	return c.await(func() string {
		v := look(c.Others(excluded...))
		if len(v.replicas) < 2 {
			return "no groups"
		}
		for id, replicas := range v.replicas {
			if wrong := groupWrong(v, id, replicas, voters); wrong != "" {
				return wrong
			}
		}
		return ""
	})
}

// AwaitLed waits until each group has a leader. It ignores the excluded nodes, and groups with
// replicas only on these.
func (c *Cluster) AwaitLed(excluded ...*Member) time.Duration {
	c.t.Helper()
	return c.await(func() string {
		v := look(c.Others(excluded...))
		for id := range v.replicas {
			if leader, _ := v.leader(id); leader == nil {
				return fmt.Sprintf("group %d has no leader: %+v", id, v.replicas[id])
			}
		}
		return ""
	})
}

func groupWrong(v view, id uint32, replicas map[*Member]admin.Group, voters int) string {
	leader, _ := v.leader(id)
	if leader == nil {
		return fmt.Sprintf("group %d has no leader", id)
	}
	of := replicas[leader]
	var voting []string
	for _, m := range of.Members {
		if m.Voter {
			voting = append(voting, m.Node)
		}
	}
	if len(voting) != voters {
		return fmt.Sprintf("group %d has voters %v, not %d", id, voting, voters)
	}
	if !everywhere(of) && (len(of.Members) != voters || len(replicas) != voters) {
		return fmt.Sprintf("group %d has %d replicas and members %v", id, len(replicas), of.Members)
	}
	return ""
}

// LeaderOfMost waits until every shard of posts has a leader. It returns the node that leads most
// of them, and the shards that this node leads.
func (c *Cluster) LeaderOfMost() (leader *Member, led []int) {
	c.t.Helper()
	c.await(func() string {
		v, all, by := look(c.Nodes()), 0, map[*Member][]int{}
		for id, replicas := range v.replicas {
			if n, _ := v.leader(id); n != nil && replicas[n].Keyspace == "posts" {
				by[n] = append(by[n], replicas[n].Shard)
				all++
			}
		}
		leader, led = nil, nil
		for n, of := range by {
			if len(of) > len(led) || len(of) == len(led) && n.at < leader.at {
				leader, led = n, of
			}
		}
		if all != c.Shards("posts") {
			return fmt.Sprintf("%d of the %d shards of posts have a leader", all, c.Shards("posts"))
		}
		return ""
	})
	slices.Sort(led)
	return leader, led
}

// AwaitShares waits until the replicas of all shards of the built-in keyspaces are spread evenly
// over the nodes that are not excluded, three replicas of each shard. The nodes' numbers of
// replicas must differ by at most one, and so must the numbers of shards that they lead.
func (c *Cluster) AwaitShares(excluded ...*Member) time.Duration {
	c.t.Helper()
	nodes, shards := c.Others(excluded...), c.AllShards()
	return c.await(func() string {
		held, led := look(nodes).shares(nodes)
		text := fmt.Sprintf("held %v, led %v", held, led)
		switch {
		case sum(held) != shards*min(nodesDefault, len(nodes)) || sum(led) != shards:
			return "not all are there: " + text
		case slices.Max(held)-slices.Min(held) > 1 || slices.Max(led)-slices.Min(led) > 1:
			return "not even: " + text
		}
		return ""
	})
}

// AwaitGone waits until no other node lists the given node in its cluster status.
func (c *Cluster) AwaitGone(gone *Member) time.Duration {
	c.t.Helper()
	others := c.Others(gone)
	return c.await(func() string {
		v := look(others)
		for _, n := range others {
			for _, known := range v.status[n].Nodes {
				if known.ID == gone.Name {
					return fmt.Sprintf("%s knows %s, which is %s", n.Name, known.ID, known.State)
				}
			}
		}
		return ""
	})
}

// shares returns how many replicas of shards each node holds, and how many of these shards it
// leads.
func (v view) shares(nodes []*Member) (held, led []int) {
	held, led = make([]int, len(nodes)), make([]int, len(nodes))
	for i, n := range nodes {
		for _, g := range v.status[n].Groups {
			if everywhere(g) {
				continue
			}
			held[i]++
			if g.Role == "leader" {
				led[i]++
			}
		}
	}
	return held, led
}

// everywhere reports whether a group always has replicas on all nodes. These are the catalog and
// the board.
func everywhere(g admin.Group) bool { return g.ID == 0 || g.Keyspace == "board" }

func sum(of []int) (all int) {
	for _, n := range of {
		all += n
	}
	return all
}
