package cluster

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/countd/countd/client"
	"github.com/countd/countd/cmd/countctl/internal/cli"
)

func coldStatusCommand(c *cli.CLI) *cobra.Command {
	status := c.ListCommand("rows on disk", func(ctx context.Context, server *client.Client) (any, func(*cli.Table), error) {
		nodes, err := server.Admin().Cold(ctx)
		return map[string]any{"nodes": nodes}, func(t *cli.Table) { coldNodeRows(t, nodes) }, err
	})
	status.Use, status.Short = "status", "Print each node's rows on disk, how they are read and which ones are moving"
	return status
}

func coldNodeRows(t *cli.Table, nodes []client.ColdNode) {
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

// coldWorkRows shows the jobs, if there are any.
func coldWorkRows(t *cli.Table, nodes []client.ColdNode) {
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

// hitRate is the share of reads that found their block in memory.
func hitRate(n client.ColdNode) string {
	if n.CacheHits+n.Reads == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f %%", 100*float64(n.CacheHits)/float64(n.CacheHits+n.Reads))
}

func latency(n client.ColdNode, seconds float64) string {
	if n.Reads == 0 {
		return "-"
	}
	return time.Duration(seconds * float64(time.Second)).Round(time.Microsecond).String()
}

// scrubbed returns the progress of the current pass.
func scrubbed(s client.ColdScrub) string {
	switch {
	case s.EverySeconds == 0:
		return "never"
	case s.PassOf == 0:
		return "-"
	}
	return fmt.Sprintf("%.0f %%", min(100, 100*float64(s.PassBytes)/float64(s.PassOf)))
}

func lastPass(s client.ColdScrub) string {
	if s.LastPass.IsZero() {
		return "-"
	}
	return s.LastPass.UTC().Format(time.RFC3339)
}
