// Package cluster owns the commands of operators: the state of nodes and groups, moves,
// drains, upgrades, restarts, cold rows, verification, users, certificates, backup and restore. A
// command that changes something sends an order, waits until the cluster has carried it out, and
// prints the progress.
//
// A command does no step of its order itself. The exception is rolling-restart, which restarts one
// node after another. The package keeps no state between commands. It prints a new token once and
// never stores it. It does not interpret the rows of a backup. Without --force, it restores nothing
// into a keyspace that has rows.
//
// Invariants: the cluster carries out each order by itself. So it completes the order even if the
// command is interrupted, and a repeated order does not redo finished steps. A directory with a
// manifest holds a complete backup, because the manifest is written last.
package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/countd/countd/client"
	"github.com/countd/countd/client/admin"
	"github.com/countd/countd/cmd/countctl/internal/cli"
)

// Commands returns the commands of this package.
func Commands(c *cli.CLI) []*cobra.Command {
	return []*cobra.Command{
		statusCommand(c), nodeCommand(c), groupCommand(c), coldCommand(c), rebalanceCommand(c),
		verifyCommand(c), upgradeCommand(c), rollingRestartCommand(c), debugCommand(c),
		backupCommand(c), restoreCommand(c), userCommand(c), tokenCommand(c), auditCommand(c), certCommand(c), recoverCommand(c),
	}
}

type statusOutput struct {
	Ready       bool                 `json:"ready"`
	Why         string               `json:"why,omitempty"` // reason why the node is not ready
	ClusterID   string               `json:"cluster_id"`
	ClusterName string               `json:"cluster_name,omitempty"` // "" for none
	Version     admin.ClusterVersion `json:"version"`
	Nodes       []admin.ClusterNode  `json:"nodes"`
	Groups      []groupOutput        `json:"groups"`
	Keyspaces   []sizeOutput         `json:"keyspaces"` // for each keyspace, the sum over its groups
	Total       sizeOutput           `json:"total"`     // sum over all groups
	Warnings    findings             `json:"warnings"`
}

// groupOutput is a group with the digest of its leader's replica.
type groupOutput struct {
	admin.ClusterGroup
	Digest string `json:"digest"` // 16 hex digits; "" without a leader
}

// sizeOutput is the total size of several groups.
type sizeOutput struct {
	Keyspace    string  `json:"keyspace,omitempty"`
	Rows        uint64  `json:"rows"`
	Bytes       uint64  `json:"bytes"`         // memory
	BytesPerRow float64 `json:"bytes_per_row"` // 0 without rows
	ColdRows    uint64  `json:"cold_rows"`     // number of rows in Rows that are on disk instead of in memory
	ColdBytes   uint64  `json:"cold_bytes"`    // disk space
	SealedRows  uint64  `json:"sealed_rows"`   // number of rows in Rows that are packed in memory
	SealedBytes uint64  `json:"sealed_bytes"`  // memory of the packed rows, included in Bytes
	Digest      string  `json:"digest"`        // sum of the groups' digests mod 2^64, 16 hex digits

	Growing *client.Growing `json:"growing,omitempty"` // nil for a keyspace that does not grow

	groups int
	digest uint64
}

func statusCommand(c *cli.CLI) *cobra.Command {
	var wait time.Duration
	var groups, live bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Print the cluster's state and warnings on one screen; exit 1 if no node at --addr is ready",
		RunE: c.OnServer(func(ctx context.Context, server *client.Client, _ []string) error {
			if live {
				return admin.New(server).Live(ctx)
			}
			ready, why, err := waitReady(ctx, server, wait)
			if err != nil {
				return fmt.Errorf("cannot find out whether the node is ready: %w", err)
			}
			out, err := readState(ctx, server)
			if err != nil && ready {
				return fmt.Errorf("cannot read the cluster's state: %w", err)
			}
			out.Ready, out.Why = ready, why
			show := out.screen
			if groups {
				show = out.table
			}
			if err := c.Print(out, show); err != nil || ready {
				return err
			}
			return fmt.Errorf("the node is not ready: %s", why)
		}),
	}
	cmd.Flags().BoolVar(&groups, "groups", false, "print each group and each warning")
	cmd.Flags().BoolVar(&live, "live", false, "only check that the process answers, ready or not, and print nothing; needs no token")
	cli.DurationFlag(cmd.Flags(), &wait, "wait", 0, "how long to wait for the node to be ready")
	return cmd
}

// waitReady polls until a node is ready, wait has passed or ctx ends. If no node is ready, why is
// the reason.
func waitReady(ctx context.Context, server *client.Client, wait time.Duration) (ready bool, why string, err error) {
	end := time.Now().Add(wait)
	err = cli.Poll(ctx, cli.PollEvery, func() (bool, error) {
		ready, why, err = anyReady(ctx, server)
		late := time.Now().After(end)
		if errors.Is(err, client.ErrNoAnswer) && !late {
			return false, nil
		}
		return ready || late, err
	})
	return ready, why, err
}

// anyReady asks the addresses of server in turn, until a node is ready or a call fails with an
// error other than ErrNoAnswer. It returns ErrNoAnswer only if no node answers.
func anyReady(ctx context.Context, server *client.Client) (ready bool, why string, err error) {
	answered := ""
	for range server.Addrs() {
		if ready, why, err = admin.New(server).Ready(ctx); ready || err != nil && !errors.Is(err, client.ErrNoAnswer) {
			return ready, why, err
		}
		if err == nil {
			answered = why
		}
	}
	if answered != "" {
		return false, answered, nil
	}
	return false, "", err
}

// readState collects the state of the cluster. If the node has no cluster yet, it returns
// an empty state and an error.
func readState(ctx context.Context, server *client.Client) (statusOutput, error) {
	out := statusOutput{Nodes: []admin.ClusterNode{}, Groups: []groupOutput{}, Keyspaces: []sizeOutput{}, Warnings: []warning{}}
	nodes, err := admin.New(server).ClusterNodes(ctx)
	if err != nil {
		return out, err
	}
	groups, err := admin.New(server).ClusterGroups(ctx)
	if err != nil {
		return out, err
	}
	digests, err := admin.New(server).Digests(ctx)
	if err != nil {
		return out, err
	}
	version, err := admin.New(server).ClusterVersion(ctx)
	if err != nil {
		return out, err
	}
	if err := out.fill(nodes, groups, digests, version); err != nil {
		return out, err
	}
	keyspaces, err := server.Keyspaces(ctx)
	out.addGrowing(keyspaces)
	out.Warnings = append(out.Warnings, warningsOfLimits(keyspaces, groups)...)
	return out, err
}

// addGrowing adds the progress of the keyspaces that grow.
func (s *statusOutput) addGrowing(keyspaces []client.Keyspace) {
	for _, k := range keyspaces {
		if i := slices.IndexFunc(s.Keyspaces, func(of sizeOutput) bool { return of.Keyspace == k.Name }); i >= 0 && k.Growing != nil {
			s.Keyspaces[i].Growing = k.Growing
			s.Warnings.growing(k)
		}
	}
}

// fill sets the fields of s from the reports of the cluster.
func (s *statusOutput) fill(nodes admin.ClusterNodes, groups []admin.ClusterGroup, digests []admin.GroupDigests, version admin.ClusterVersion) error {
	s.ClusterID, s.ClusterName = nodes.ClusterID, nodes.ClusterName
	s.Nodes, s.Version = append(s.Nodes, nodes.Nodes...), version
	for _, g := range groups {
		s.Groups = append(s.Groups, groupOutput{g, leaderDigest(g, digests)})
	}
	s.Warnings = warningsOf(nodes.Nodes, groups, digests, version)
	return s.sum()
}

func leaderDigest(g admin.ClusterGroup, digests []admin.GroupDigests) string {
	for _, d := range digests {
		for _, r := range d.Replicas {
			if d.ID == g.ID && r.Node == g.Leader {
				return r.Digest
			}
		}
	}
	return ""
}

// sum adds up the sizes of the groups, for each keyspace and for the whole cluster.
func (s *statusOutput) sum() error {
	at := map[string]int{}
	for _, g := range s.Groups {
		i, known := at[g.Keyspace]
		if !known {
			i = len(s.Keyspaces)
			at[g.Keyspace] = i
			s.Keyspaces = append(s.Keyspaces, sizeOutput{Keyspace: g.Keyspace})
		}
		digest := uint64(0)
		if g.Digest != "" && g.Keyspace != cli.MetaKeyspace { // without a leader that answers, the digest is ""; the catalog's group has no rows to sum
			var err error
			if digest, err = strconv.ParseUint(g.Digest, 16, 64); err != nil {
				return fmt.Errorf("the digest %q of group %d is not 16 hex digits", g.Digest, g.ID)
			}
		}
		s.Keyspaces[i].add(g, digest)
		s.Total.add(g, digest)
	}
	return nil
}

// add adds the sizes of a group. digest is g.Digest as a number.
func (s *sizeOutput) add(g groupOutput, digest uint64) {
	s.groups++
	s.Rows += g.Rows
	s.Bytes += g.Bytes
	s.ColdRows += g.ColdRows
	s.ColdBytes += g.ColdBytes
	s.SealedRows += g.SealedRows
	s.SealedBytes += g.SealedBytes
	s.digest += digest
	s.Digest = fmt.Sprintf("%016x", s.digest)
	s.BytesPerRow = perRow(s.Bytes, s.Rows)
}

func perRow(bytes, rows uint64) float64 {
	if rows == 0 {
		return 0
	}
	return float64(bytes) / float64(rows)
}

// clusterText returns the cluster's name and id, or only the id if it has no name.
func (s statusOutput) clusterText() string {
	if s.ClusterName == "" {
		return s.ClusterID
	}
	return s.ClusterName + " (" + s.ClusterID + ")"
}

// table fills the table with the whole state, however long it is.
func (s statusOutput) table(t *cli.Table) {
	t.Row("CLUSTER", "VERSION", "READY", "WARNINGS")
	t.Row(cmp.Or(s.clusterText(), "-"), s.Version.Version, s.Ready, len(s.Warnings))
	t.Gap()
	t.Row("NODE", "ZONE", "STATE", "VERSION", "LEADS", "REPLICAS", "HTTP")
	for _, n := range s.Nodes {
		t.Row(n.ID, cmp.Or(n.Zone, "-"), condition(n), n.Version, n.Leads, n.Replicas, n.HTTPAddr)
	}
	t.Gap()
	s.groupTable(t)
	if len(s.Warnings) == 0 {
		return
	}
	t.Gap()
	t.Row("WARNING", "")
	for _, w := range s.Warnings {
		t.Row(w.Code, w.Text)
		t.Row("", "$ "+w.Run)
	}
}

// groupTable adds the groups and their sums to the table.
func (s statusOutput) groupTable(t *cli.Table) {
	t.Row("GROUP", "NAME", "LEADER", "VOTERS", "LAG", "ROWS", "BYTES", "BYTES/ROW", "COLD", "DISK", "DIGEST")
	for _, g := range s.Groups {
		t.Row(g.ID, cli.GroupName(g.ClusterGroup), cmp.Or(g.Leader, "-"), strings.Join(g.Voters, ","), lagOf(g.ClusterGroup),
			cli.Grouped(g.Rows), cli.Grouped(g.Bytes), fmt.Sprintf("%.1f", perRow(g.Bytes, g.Rows)), cli.Grouped(g.ColdRows), cli.Grouped(g.ColdBytes), cmp.Or(g.Digest, "-"))
	}
	for _, k := range append(slices.Clone(s.Keyspaces), s.Total) {
		t.Row("sum", cmp.Or(k.Keyspace, "total"), "", cli.Counted(k.groups, "group"), "", cli.Grouped(k.Rows), cli.Grouped(k.Bytes), fmt.Sprintf("%.1f", k.BytesPerRow), cli.Grouped(k.ColdRows), cli.Grouped(k.ColdBytes), k.Digest)
	}
}
