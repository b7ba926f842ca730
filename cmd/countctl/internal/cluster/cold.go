package cluster

import (
	"cmp"
	"context"
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

// coldWait is enough time to move hundreds of millions of rows out of memory.
const coldWait = 24 * time.Hour

// coldOutput is the JSON output of "cold migrate" and "cold stop".
type coldOutput struct {
	ID    string           `json:"id"`   // id of the order; "" for a dry run
	Rows  uint64           `json:"rows"` // number of moved rows or, if the command did not wait, of due rows, summed over all replicas
	Done  bool             `json:"done"` // the jobs have ended on all nodes that accepted the order
	Nodes []coldNodeOutput `json:"nodes"`

	verb string
}

type coldNodeOutput struct {
	admin.ColdOrderedNode
	Moved  uint64 `json:"moved"`
	Ended  bool   `json:"ended"`
	Failed string `json:"failed,omitempty"`
}

func coldCommand(c *cli.CLI) *cobra.Command {
	return cli.CommandGroup("cold", "Show the rows on disk, and move rows to disk",
		coldStatusCommand(c), coldMigrateCommand(c), coldStopCommand(c))
}

func coldMigrateCommand(c *cli.CLI) *cobra.Command {
	var m admin.ColdMigration
	var before string
	wait := coldWait
	cmd := &cobra.Command{
		Use:   "migrate [KEYSPACE]",
		Short: "Move old rows to disk now, on all nodes, and wait for that",
		Long: `Move old rows to disk now, on all nodes, and wait for that.

Each node's --cold-after decides which rows are old, unless --before or --older-than is
given. Some 10,000 adjacent rows move together, once nobody has written to any of them for
two seconds; the newest rows of a shard always stay. If the command is interrupted, the nodes
continue; cold stop ends the job.`,
		Example: "  countctl cold migrate posts --older-than 720h\n  countctl cold migrate users --before 1000000 --dry-run",
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if len(args) > 0 {
				if m.Keyspace = args[0]; m.Keyspace == "" { // in the API, an empty name means all keyspaces
					return cli.Usagef("KEYSPACE is empty")
				}
			}
			if m.Before, err = idFlag(cmd, "before", before); err != nil {
				return err
			}
			if cmd.Flags().Changed("before") && m.Before == 0 { // in the API, 0 means that the field is absent
				return cli.Usagef("--before: no id is below 0")
			}
			return orderCold(cmd.Context(), c, "migrate", wait, m.DryRun, func(server *client.Client) (admin.ColdOrdered, error) {
				return admin.New(server).MigrateCold(cmd.Context(), m)
			})
		},
	}
	cmd.Flags().StringVar(&before, "before", "", "move rows of ids below this one")
	cli.DurationFlag(cmd.Flags(), &m.OlderThan, "older-than", 0, "move rows older than this by the time in their ids, 1s to 876000h, in whole seconds")
	cmd.Flags().BoolVar(&m.DryRun, "dry-run", false, "print how many old rows are in memory, and move none")
	cli.WaitFlag(cmd, &wait)
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if cmd.Flags().Changed("before") && cmd.Flags().Changed("older-than") {
			return cli.Usagef("give --before or --older-than, not both")
		}
		return wholeSeconds(cmd, "older-than", m.OlderThan)
	}
	return cmd
}

func coldStopCommand(c *cli.CLI) *cobra.Command {
	return &cobra.Command{
		Use:   "stop",
		Short: "Stop the jobs of cold migrate",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return orderCold(cmd.Context(), c, "stop", 0, true, func(server *client.Client) (admin.ColdOrdered, error) {
				return admin.New(server).StopCold(cmd.Context())
			})
		},
	}
}

// idFlag parses text as an id and returns the id. text is the value of the flag that name names. If
// the flag is absent, idFlag returns 0.
func idFlag(cmd *cobra.Command, name, text string) (uint64, error) {
	if !cmd.Flags().Changed(name) {
		return 0, nil
	}
	id, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, cli.Usagef("--%s: %q is not an unsigned 64-bit integer", name, text)
	}
	return id, nil
}

// wholeSeconds returns an error for a duration that is below 1s or not in whole seconds, because
// the API has only whole seconds.
func wholeSeconds(cmd *cobra.Command, name string, d time.Duration) error {
	if cmd.Flags().Changed(name) && (d < time.Second || d%time.Second != 0) {
		return cli.Usagef("--%s is 1s or more, in whole seconds, not %v", name, d)
	}
	return nil
}

// orderCold calls order, which sends an order about cold rows to all nodes. Unless orderOnly or
// --no-wait is set, it then waits until the jobs end on the nodes that accepted the order.
func orderCold(ctx context.Context, c *cli.CLI, verb string, wait time.Duration, orderOnly bool, order func(*client.Client) (admin.ColdOrdered, error)) error {
	server, _, err := c.Operate(ctx)
	if err != nil {
		return err
	}
	defer server.Close()
	ordered, err := order(server)
	if err != nil {
		return fmt.Errorf("cannot have the nodes %s rows: %w", verb, err)
	}
	out := coldOutput{ID: ordered.ID, verb: verb}
	for _, n := range ordered.Nodes {
		out.Nodes = append(out.Nodes, coldNodeOutput{ColdOrderedNode: n})
		if out.Rows += n.Rows; !n.Answers {
			c.Say("%s does not answer: %s", n.Node, out.consequence())
		}
	}
	if !orderOnly && !c.NoWait {
		if err := awaitCold(ctx, c, server, &out, wait); err != nil {
			return err
		}
	}
	if err := c.Print(out, func(t *cli.Table) { coldRows(t, out) }); err != nil {
		return err
	}
	return out.verdict(verb)
}

// consequence describes what happens to the order on a node that does not answer.
func (o *coldOutput) consequence() string {
	switch {
	case o.verb == "stop":
		return "a job that it may be running continues"
	case o.ID == "":
		return "its rows are not among these"
	}
	return "it begins nothing, unless it answered too late; this command does not wait for it"
}

// awaitCold waits until the jobs end on all nodes that accepted the order.
func awaitCold(ctx context.Context, c *cli.CLI, server *client.Client, out *coldOutput, wait time.Duration) error {
	err := c.Await(ctx, wait, func(ctx context.Context) (string, error) {
		seen, err := admin.New(server).Cold(ctx)
		if err != nil {
			return "", err
		}
		return out.update(seen), nil
	})
	out.Done = err == nil
	return cli.GoesOn(err, "the nodes continue the job; countctl cold stop ends it")
}

// update records the progress of the nodes, and returns the reason to wait, or "".
func (o *coldOutput) update(seen []admin.ColdNode) string {
	var waits []string
	o.Rows = 0
	for i := range o.Nodes {
		n := &o.Nodes[i]
		if at := slices.IndexFunc(seen, func(s admin.ColdNode) bool { return s.Node == n.Node }); n.Answers && n.Refused == "" && !n.Ended {
			switch {
			case at < 0:
				n.Ended, n.Failed = true, "it has left the cluster"
			case !seen[at].Answers:
				waits = append(waits, n.Node+" does not answer")
			case seen[at].Work == nil || seen[at].Work.ID != o.ID:
				n.Ended, n.Failed = true, "it was started again, or had another order"
			default:
				work := seen[at].Work
				n.Moved, n.Ended, n.Failed = work.Rows, !work.Running, work.Failed
				if work.Running {
					waits = append(waits, fmt.Sprintf("%s has moved %d %% of about %s rows", n.Node, min(100, 100*work.Rows/max(1, work.Of)), cli.Grouped(work.Of)))
				}
			}
		}
		o.Rows += n.Moved
	}
	return strings.Join(waits, ", ")
}

// verdict returns an error if a node refused the order or did not complete it.
func (o *coldOutput) verdict(verb string) error {
	for _, n := range o.Nodes {
		switch {
		case n.Refused != "":
			return fmt.Errorf("%s did not begin to %s rows: %s", n.Node, verb, n.Refused)
		case n.Failed != "":
			return fmt.Errorf("%s did not %s all rows: %s", n.Node, verb, n.Failed)
		}
	}
	return nil
}

func coldRows(t *cli.Table, o coldOutput) {
	t.Row("NODE", "ROWS DUE", "MOVED", "STATE")
	for _, n := range o.Nodes {
		state := "begun"
		switch {
		case !n.Answers:
			state = "no answer"
		case n.Refused != "":
			state = n.Refused
		case n.Failed != "":
			state = n.Failed
		case n.Ended:
			state = "done"
		case o.ID == "":
			state = "dry run"
		case o.verb == "stop":
			state = "stopped"
		}
		t.Row(n.Node, cli.Grouped(n.Rows), cli.Grouped(n.Moved), state)
	}
}

func coldStatusCommand(c *cli.CLI) *cobra.Command {
	status := c.ListCommand("rows on disk", func(ctx context.Context, server *client.Client) (any, func(*cli.Table), error) {
		nodes, err := admin.New(server).Cold(ctx)
		return map[string]any{"nodes": nodes}, func(t *cli.Table) { coldNodeRows(t, nodes) }, err
	})
	status.Use, status.Short = "status", "Print each node's rows on disk, how they are read and which ones are moving"
	return status
}

func coldNodeRows(t *cli.Table, nodes []admin.ColdNode) {
	t.Row("NODE", "KEYSPACE", "IN MEMORY", "MEMORY", "COLD", "DISK", "RUNS", "DUE", "DAMAGED")
	for _, n := range nodes {
		if !n.Answers {
			t.Row(n.Node, "no answer", "", "", "", "", "", "", "")
		}
		for _, k := range n.Keyspaces {
			t.Row(n.Node, k.Keyspace, cli.Grouped(k.Rows-min(k.Rows, k.ColdRows)), cli.Grouped(k.MemoryBytes), cli.Grouped(k.ColdRows), cli.Grouped(k.ColdBytes),
				cli.Grouped(k.Generations), cli.Grouped(k.DueRows), damagedShards(k.DamagedShards))
		}
	}
	t.Gap()
	t.Row("NODE", "AFTER", "FILES", "CACHE", "HITS", "READS", "P50", "P99", "REFUSED", "SCRUBBED", "LAST", "FOUND")
	for _, n := range nodes {
		if n.Answers {
			t.Row(n.Node, orNever(n.AfterSeconds), cli.Grouped(n.DiskBytes), cli.Grouped(n.CacheBytes), hitRate(n), cli.Grouped(n.Reads),
				latency(n, n.ReadP50), latency(n, n.ReadP99), cli.Grouped(n.Refused), scrubbed(n.Scrub), lastPass(n.Scrub), cli.Grouped(n.Damaged))
		}
	}
	coldWorkRows(t, nodes)
}

// coldWorkRows adds the jobs of the nodes to the table, if there are any.
func coldWorkRows(t *cli.Table, nodes []admin.ColdNode) {
	header := true
	row := func(cells ...any) {
		if header {
			t.Gap()
			t.Row("NODE", "WORK", "KEYSPACE", "ROWS", "OF", "STATE")
			header = false
		}
		t.Row(cells...)
	}
	for _, n := range nodes {
		if w := n.Work; w != nil {
			state := "done"
			switch {
			case w.Running:
				state = "since " + w.Began.UTC().Format(time.RFC3339)
			case w.Failed != "":
				state = w.Failed
			}
			row(n.Node, w.Verb, cmp.Or(w.Keyspace, "-"), cli.Grouped(w.Rows), cli.Grouped(w.Of), state)
		}
	}
}

func damagedShards(n int) string {
	if n == 0 {
		return "-"
	}
	return fmt.Sprintf("%d shards", n)
}

func orNever(seconds float64) string {
	if seconds == 0 {
		return "never"
	}
	return time.Duration(seconds * float64(time.Second)).String()
}

// hitRate returns the cache hits as a share of all reads of cold rows.
func hitRate(n admin.ColdNode) string {
	if n.CacheHits+n.Reads == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f %%", 100*float64(n.CacheHits)/float64(n.CacheHits+n.Reads))
}

func latency(n admin.ColdNode, seconds float64) string {
	if n.Reads == 0 {
		return "-"
	}
	return time.Duration(seconds * float64(time.Second)).Round(time.Microsecond).String()
}

// scrubbed returns the progress of the current scrub pass.
func scrubbed(s admin.ColdScrub) string {
	switch {
	case s.EverySeconds == 0:
		return "never"
	case s.PassOf == 0:
		return "-"
	}
	return fmt.Sprintf("%.0f %%", min(100, 100*float64(s.PassBytes)/float64(s.PassOf)))
}

func lastPass(s admin.ColdScrub) string {
	if s.LastPass.IsZero() {
		return "-"
	}
	return s.LastPass.UTC().Format(time.RFC3339)
}
