package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/countd/countd/client"
)

// readyPollEvery is how often status --wait asks.
const readyPollEvery = 100 * time.Millisecond

// statusOutput is what status prints as JSON.
type statusOutput struct {
	Ready     bool           `json:"ready"`
	Why       string         `json:"why,omitempty"` // it is not ready
	ClusterID string         `json:"cluster_id"`
	Nodes     []client.Node  `json:"nodes"`
	Groups    []client.Group `json:"groups"`
	Keyspaces []sizeOutput   `json:"keyspaces"` // sums over their groups
	Total     sizeOutput     `json:"total"`     // sum over all groups
}

// sizeOutput is the size of groups together.
type sizeOutput struct {
	Keyspace    string  `json:"keyspace,omitempty"`
	Rows        uint64  `json:"rows"`
	Bytes       uint64  `json:"bytes"`         // of memory
	BytesPerRow float64 `json:"bytes_per_row"` // 0 without rows
	Digest      string  `json:"digest"`        // sum of the groups' digests mod 2^64, 16 hex digits
}

func (c *cli) statusCommand() *cobra.Command {
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Print nodes and groups; exit 1 when the node is not ready",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			server, err := c.connect()
			if err != nil {
				return err
			}
			defer server.Close()
			ready, why, err := waitReady(cmd.Context(), server, wait)
			if err != nil {
				return fmt.Errorf("cannot tell whether the node is ready: %w", err)
			}
			cluster, err := server.Cluster(cmd.Context())
			if err != nil && ready {
				return fmt.Errorf("cannot read the cluster's state: %w", err)
			}
			out, err := newStatus(cluster, ready, why)
			if err != nil {
				return err
			}
			if err := c.print(out, out.table); err != nil || ready {
				return err
			}
			return fmt.Errorf("the node is not ready: %s", why)
		},
	}
	cmd.Flags().DurationVar(&wait, "wait", 0, "wait so long for the node to be ready")
	return cmd
}

// waitReady asks until the node is ready, the wait is over or ctx ends.
func waitReady(ctx context.Context, server *client.Client, wait time.Duration) (ready bool, why string, err error) {
	end := time.Now().Add(wait)
	for {
		ready, why, err = server.Ready(ctx)
		if ready || time.Now().After(end) || err != nil && !errors.Is(err, client.ErrNoAnswer) {
			return ready, why, err
		}
		select {
		case <-ctx.Done():
			return false, "", ctx.Err()
		case <-time.After(readyPollEvery):
		}
	}
}

func newStatus(cluster client.Cluster, ready bool, why string) (statusOutput, error) {
	out := statusOutput{
		Ready: ready, Why: why, ClusterID: cluster.ClusterID,
		Nodes: append([]client.Node{}, cluster.Nodes...), Groups: append([]client.Group{}, cluster.Groups...),
		Keyspaces: []sizeOutput{},
	}
	var names []string
	for _, g := range cluster.Groups {
		if !slices.Contains(names, g.Keyspace) {
			names = append(names, g.Keyspace)
		}
	}
	var err error
	for _, name := range names {
		var sum sizeOutput
		if sum, err = sumGroups(cluster.Groups, func(g client.Group) bool { return g.Keyspace == name }); err != nil {
			return out, err
		}
		sum.Keyspace = name
		out.Keyspaces = append(out.Keyspaces, sum)
	}
	out.Total, err = sumGroups(cluster.Groups, func(client.Group) bool { return true })
	return out, err
}

func sumGroups(groups []client.Group, counts func(client.Group) bool) (sizeOutput, error) {
	var sum sizeOutput
	var digest uint64
	for _, g := range groups {
		if !counts(g) {
			continue
		}
		sum.Rows += g.Rows
		sum.Bytes += g.Bytes
		if g.Digest == "" {
			continue // a group without rows, such as meta
		}
		d, err := strconv.ParseUint(g.Digest, 16, 64)
		if err != nil {
			return sum, fmt.Errorf("the digest %q of group %d is not 16 hex digits", g.Digest, g.ID)
		}
		digest += d
	}
	sum.Digest = fmt.Sprintf("%016x", digest)
	sum.BytesPerRow = perRow(sum.Bytes, sum.Rows)
	return sum, nil
}

func perRow(bytes, rows uint64) float64 {
	if rows == 0 {
		return 0
	}
	return float64(bytes) / float64(rows)
}

func (s statusOutput) table(t *table) {
	t.row("NODE", "STATE", "VERSION", "HTTP", "CLUSTER", "GOSSIP")
	for _, n := range s.Nodes {
		t.row(n.ID, n.State, n.Version, n.HTTPAddr, n.ClusterAddr, n.GossipAddr)
	}
	t.gap()
	t.row("GROUP", "KEYSPACE", "SHARD", "LEADER", "ROLE", "APPLIED", "ROWS", "BYTES", "BYTES/ROW", "DIGEST")
	for _, g := range s.Groups {
		t.row(g.ID, g.Keyspace, g.Shard, g.Leader, g.Role, g.AppliedIndex,
			grouped(g.Rows), grouped(g.Bytes), fmt.Sprintf("%.1f", perRow(g.Bytes, g.Rows)), g.Digest)
	}
	for _, k := range append(slices.Clone(s.Keyspaces), s.Total) {
		name := k.Keyspace
		if name == "" {
			name = "total"
		}
		t.row("sum", name, "", "", "", "", grouped(k.Rows), grouped(k.Bytes), fmt.Sprintf("%.1f", k.BytesPerRow), k.Digest)
	}
}
