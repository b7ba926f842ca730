package cluster

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/docker/go-units"

	"github.com/countd/countd/client/admin"
	"github.com/countd/countd/cmd/countctl/internal/cli"
)

const (
	// screenWidth and screenLines are the size of a terminal of 80 columns and 24 lines, without
	// one line for the prompt.
	screenWidth = 80
	screenLines = 24 - 1
	// If the output is too long, screen cuts its lists, but not below these lengths. With all lists
	// at these lengths, the output fits into screenLines.
	warningLinesMin = 6
	nodeLinesMin    = 4
	keyspaceMin     = 3
	// namesMax is the number of node names in a line such as "n1, n2, n3 and 5 more".
	namesMax = 3
)

// screen fills the table with one screen of output: a summary, the warnings, the nodes and the
// keyspaces.
func (s statusOutput) screen(t *cli.Table) {
	if s.ClusterID == "" { // the node does not belong to a cluster yet
		for _, line := range wrapped("The node is not ready: "+s.Why, "") {
			t.Row(line)
		}
		return
	}
	summary := s.summary()
	warnings, nodes := s.warningLines(), s.nodeRows()
	keyspaces, shards := s.keyspaceRows()
	// Besides the lists, the output has 3 gaps, 2 table headers and 1 line of totals.
	excess := len(summary) + 3 + 2 + 1 + len(warnings) + len(nodes) + len(keyspaces) - screenLines
	keyspaces, excess = cut(keyspaces, keyspaceMin, excess, func(n int) []any {
		return []any{fmt.Sprintf("%d more", n), "", "", "", "", "", ""}
	})
	nodes, excess = cut(nodes, nodeLinesMin, excess, func(n int) []any {
		return []any{fmt.Sprintf("%d more", n), "", "", "", "", ""}
	})
	warnings, _ = cut(warnings, warningLinesMin, excess, func(n int) string {
		return cli.Counted(n, "more line") + ": countctl status --groups"
	})
	for _, line := range slices.Concat(summary, []string{""}, warnings) {
		t.Row(line)
	}
	t.Gap()
	t.Row("NODE", "ZONE", "STATE", "VERSION", "LEADS", "REPLICAS")
	for _, row := range nodes {
		t.Row(row...)
	}
	t.Gap()
	t.Row("KEYSPACE", "SHARDS", "ROWS", "MEMORY", "BYTES/ROW", "COLD", "DISK")
	for _, row := range keyspaces {
		t.Row(row...)
	}
	t.Row(sizeRow("total", shards, s.Total)...)
}

// cut removes up to excess lines from the end of a list, but keeps at least keepMin lines. If it
// removes any, the last line becomes the result of hiddenLine for the number of hidden lines. cut
// also returns the rest of excess, which must be removed from other lists.
func cut[L any](lines []L, keepMin, excess int, hiddenLine func(n int) L) ([]L, int) {
	if excess <= 0 || len(lines) <= keepMin {
		return lines, excess
	}
	keep := max(keepMin, len(lines)-excess)
	excess -= len(lines) - keep
	return append(lines[:keep-1:keep-1], hiddenLine(len(lines)-keep+1)), excess
}

// summary describes the cluster in at most three lines.
func (s statusOutput) summary() []string {
	state := "is ready"
	if !s.Ready {
		state = "is not ready: " + s.Why
	}
	lines := wrapped(fmt.Sprintf("Cluster %s, version %d, %s", s.clusterText(), s.Version.Version, state), "")
	if len(lines) > 2 {
		lines = append(lines[:1:1], clip(lines[1], screenWidth-1)+"…")
	}
	alive, led := 0, 0
	for _, n := range s.Nodes {
		if n.Alive {
			alive++
		}
	}
	for _, g := range s.Groups {
		if g.Leader != "" {
			led++
		}
	}
	return append(lines, fmt.Sprintf("%d of %s alive, %d of %s with a leader, %s",
		alive, cli.Counted(len(s.Nodes), "node"), led, cli.Counted(len(s.Groups), "group"), cli.Counted(s.Total.Rows, "row")))
}

// warningLines returns the lines of all warnings. It merges warnings that differ only in their node
// or group into one text.
func (s statusOutput) warningLines() []string {
	if len(s.Warnings) == 0 {
		return []string{"no warnings"}
	}
	width := 0
	for _, w := range s.Warnings {
		width = max(width, len(w.Code))
	}
	var lines []string
	for _, alike := range alikes(s.Warnings) {
		lines = append(lines, wrapped(textOf(alike), fmt.Sprintf("%-*s", width+2, alike[0].Code))...)
		lines = append(lines, commandLine(alike))
	}
	return lines
}

// commandLine returns a line with the command of the first of several warnings that are alike, and the other nodes
// in its comment. Only a comment is cut to the screen, so that the line can be copied.
func commandLine(alike []warning) string {
	var others []string
	for _, w := range alike[1:] {
		if w.node != alike[0].node && !slices.Contains(others, w.node) {
			others = append(others, w.node)
		}
	}
	line := "  $ " + alike[0].Run
	if len(others) > 0 {
		line += "; likewise " + few(others)
	}
	if command, _, _ := strings.Cut(line, "#"); len(command) < screenWidth {
		return clip(line, screenWidth)
	}
	return line
}

// alikes splits the warnings into lists that can be merged into one text each. The lists are in the
// order of their first warnings.
func alikes(warnings []warning) (all [][]warning) {
	type kind struct{ code, plural string }
	at := map[kind]int{}
	for _, w := range warnings {
		k := kind{w.Code, w.plural}
		if i, known := at[k]; known && w.plural != "" {
			all[i] = append(all[i], w)
			continue
		}
		at[k] = len(all)
		all = append(all, []warning{w})
	}
	return all
}

func textOf(alike []warning) string {
	w := alike[0]
	if len(alike) == 1 {
		return w.Text
	}
	if w.group != "" {
		return cli.Counted(len(alike), "group") + " " + w.plural
	}
	var nodes []string
	for _, w := range alike {
		nodes = append(nodes, w.node)
	}
	return few(nodes) + " " + w.plural
}

// few joins the names of nodes. If there are more than namesMax+1, it joins the first namesMax and
// the number of the others.
func few(nodes []string) string {
	if len(nodes) <= namesMax+1 {
		return strings.Join(nodes, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(nodes[:namesMax], ", "), len(nodes)-namesMax)
}

// nodeRows returns a table row for each node. If there are more than nodeLinesMin nodes, those with
// problems come first.
func (s statusOutput) nodeRows() [][]any {
	nodes := slices.Clone(s.Nodes)
	if len(nodes) > nodeLinesMin {
		rank := func(n admin.ClusterNode) int {
			if condition(n) == "alive" {
				return 1
			}
			return 0
		}
		slices.SortStableFunc(nodes, func(a, b admin.ClusterNode) int { return cmp.Compare(rank(a), rank(b)) })
	}
	var rows [][]any
	for _, n := range nodes {
		rows = append(rows, []any{clip(n.ID, 18), clip(cmp.Or(n.Zone, "-"), 12), condition(n), clip(n.Version, 18), n.Leads, n.Replicas})
	}
	return rows
}

// keyspaceRows returns a table row for each keyspace, the largest first, and the number of all
// their shards. It leaves out the catalog's group.
func (s statusOutput) keyspaceRows() (rows [][]any, shards int) {
	keyspaces := slices.Clone(s.Keyspaces)
	slices.SortStableFunc(keyspaces, func(a, b sizeOutput) int { return cmp.Compare(b.Rows, a.Rows) })
	for _, k := range keyspaces {
		if k.Keyspace != cli.MetaKeyspace {
			rows = append(rows, sizeRow(clip(k.Keyspace, 18), k.groups, k))
			shards += k.groups
		}
	}
	return rows, shards
}

func sizeRow(name string, shards int, k sizeOutput) []any {
	cold := "-"
	if k.ColdRows > 0 {
		cold = fmt.Sprintf("%.0f %%", 100*float64(k.ColdRows)/float64(k.Rows))
	}
	return []any{name, shards, cli.Grouped(k.Rows), size(k.Bytes), fmt.Sprintf("%.1f", k.BytesPerRow), cold, size(k.ColdBytes)}
}

func size(bytes uint64) string { return units.HumanSizeWithPrecision(float64(bytes), 3) }

// clip cuts a text to at most width characters. A cut text ends in "…".
func clip(text string, width int) string {
	if utf8.RuneCountInString(text) <= width {
		return text
	}
	return string([]rune(text)[:width-1]) + "…"
}

// wrapped breaks a text between words into lines of at most screenWidth. The first line begins with
// head, the others with as many spaces.
func wrapped(text, head string) (lines []string) {
	line := head
	free := func() int { return screenWidth - utf8.RuneCountInString(line) }
	begun := false // line has a word after its head or spaces
	for _, word := range strings.Fields(text) {
		if begun && free() < 1+utf8.RuneCountInString(word) {
			lines, line, begun = append(lines, line), strings.Repeat(" ", len(head)), false
		}
		if begun {
			line += " "
		}
		line, begun = line+clip(word, screenWidth-len(head)), true
	}
	return append(lines, line)
}
