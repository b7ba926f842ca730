package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/countd/countd/client"
)

// coldStatusOutput is the JSON output of cold status.
type coldStatusOutput struct {
	Nodes []client.ColdNode `json:"nodes"`
}

func (c *cli) coldStatusCommand() *cobra.Command {
	status := c.listCommand("rows on disk", func(ctx context.Context, server *client.Client) (any, func(*table), error) {
		nodes, err := server.Cold(ctx)
		return coldStatusOutput{nodes}, func(t *table) { t.coldNodes(nodes) }, err
	})
	status.Use, status.Short = "status", "Print each node's rows on disk, how they are read and which ones are moving"
	return status
}

func (t *table) coldNodes(nodes []client.ColdNode) {
	t.row("NODE", "KEYSPACE", "IN MEMORY", "MEMORY", "COLD", "DISK", "RUNS", "DUE", "DAMAGED")
	for _, n := range nodes {
		if !n.Answers {
			t.row(n.Node, "no answer", "", "", "", "", "", "", "")
		}
		for _, k := range n.Keyspaces {
			t.row(n.Node, k.Keyspace, grouped(k.Rows-min(k.Rows, k.ColdRows)), grouped(k.MemoryBytes), grouped(k.ColdRows), grouped(k.ColdBytes),
				grouped(k.Generations), grouped(k.DueRows), damagedShards(k.DamagedShards))
		}
	}
	t.gap()
	t.row("NODE", "AFTER", "FILES", "CACHE", "HITS", "READS", "P50", "P99", "REFUSED", "SCRUBBED", "LAST", "FOUND")
	for _, n := range nodes {
		if n.Answers {
			t.row(n.Node, orNever(n.AfterSeconds), grouped(n.DiskBytes), grouped(n.CacheBytes), hitRate(n), grouped(n.Reads),
				latency(n, n.ReadP50), latency(n, n.ReadP99), grouped(n.Refused), scrubbed(n.Scrub), lastPass(n.Scrub), grouped(n.Damaged))
		}
	}
	t.coldWork(nodes)
}

// coldWork shows the jobs and the rows kept in memory, if there are any.
func (t *table) coldWork(nodes []client.ColdNode) {
	header := true
	row := func(cells ...any) {
		if header {
			t.gap()
			t.row("NODE", "WORK", "KEYSPACE", "ROWS", "OF", "STATE")
			header = false
		}
		t.row(cells...)
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
			row(n.Node, w.Verb, orNone(w.Keyspace), grouped(w.Rows), grouped(w.Of), state)
		}
		for _, k := range n.Kept {
			row(n.Node, "keep", k.Keyspace, "", "", fmt.Sprintf("ids %d to %d until %s", k.From, k.To, k.Until.UTC().Format(time.RFC3339)))
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
