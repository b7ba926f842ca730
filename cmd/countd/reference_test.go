package main

import (
	"cmp"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"github.com/countd/countd/internal/proctest"
)

const referenceFile = "../../docs/REFERENCE.md"

var rewrite = flag.Bool("rewrite", false, "write docs/REFERENCE.md anew, after an intended change of settings or metrics")

// TestReference compares docs/REFERENCE.md with the settings of the program and with the
// metrics of a started node.
func TestReference(t *testing.T) {
	want := reference(t)
	if *rewrite {
		if err := os.WriteFile(referenceFile, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(referenceFile)
	if err != nil {
		t.Fatal(err)
	}
	have := strings.Split(string(text), "\n")
	for i, line := range strings.Split(want, "\n") {
		if i >= len(have) || have[i] != line {
			t.Fatalf("line %d of docs/REFERENCE.md is not\n%s\nrun: go test ./cmd/countd -run TestReference -rewrite", i+1, line)
		}
	}
	if string(text) != want {
		t.Error("docs/REFERENCE.md has more lines than the program has settings and metrics")
	}
}

// TestDocsNameMetrics checks that the reference contains each metric that a page for operators
// names.
func TestDocsNameMetrics(t *testing.T) {
	text, err := os.ReadFile(referenceFile)
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z_0-9]+)` \\|").FindAllStringSubmatch(string(text), -1) {
		known[m[1]] = true
	}
	for _, page := range []string{"OPERATING.md", "MONITORING.md", "SECURITY.md", "UNREAD.md"} {
		text, err := os.ReadFile("../../docs/" + page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile("`(countd_[a-z_]+)").FindAllStringSubmatch(string(text), -1) {
			if name := strings.TrimSuffix(m[1], "_count"); !known[name] {
				t.Errorf("docs/%s names %s, which no node serves", page, m[1])
			}
		}
	}
}

func reference(t *testing.T) string {
	t.Helper()
	var out strings.Builder
	out.WriteString(`# Reference: settings and metrics

The program generates this page: go test ./cmd/countd -run TestReference -rewrite.
[OPERATING.md](OPERATING.md) says how to use what is listed here.

## Settings

Each setting is a flag of ` + "`countd`" + `, a variable (` + "`COUNTD_DATA_DIR` for `--data-dir`" + `) and a key of
the YAML file (` + "`data-dir`" + `). Sizes are bytes or have a unit, such as ` + "`64MiB`" + `; durations have
units, such as ` + "`10m`, `48h` or `30d`" + `.

| setting | type | default | meaning |
|---|---|---|---|
`)
	root := rootCommand(newConfig())
	root.PersistentFlags().VisitAll(func(f *pflag.Flag) {
		value := f.DefValue
		if f.Value.Type() == "duration" { // shorten 10m0s to 10m, and 24h0m0s to 24h
			value = regexp.MustCompile(`^(.*h)0m0s$|^(.*m)0s$`).ReplaceAllString(value, "$1$2")
		}
		if value != "" {
			value = "`" + value + "`"
		}
		fmt.Fprintf(&out, "| `--%s` | %s | %s | %s |\n", f.Name, cell(f.Value.Type()), cell(value), cell(f.Usage))
	})
	out.WriteString(`
## Metrics

A node serves these at ` + "`/metrics`" + `, in the text format of Prometheus. A metric with labels appears with
its first event. A histogram has ` + "`_bucket`, `_sum` and `_count`" + `. The metrics of the process and of the
Go runtime, ` + "`process_…` and `go_…`" + `, are those of the Go client library of Prometheus.

| metric | type | labels | meaning |
|---|---|---|---|
`)
	for _, m := range metricsOf(t) {
		fmt.Fprintf(&out, "| `%s` | %s | %s | %s |\n", m.name, m.kind, strings.Join(m.labels, ", "), cell(m.help))
	}
	return out.String()
}

// cell escapes text for a cell of a Markdown table.
func cell(text string) string {
	return strings.NewReplacer("|", `\|`, "\n", " ", "<", "&lt;").Replace(text)
}

// unsampledGauges have no sample at a node without sources, certificates and limits.
var unsampledGauges = []string{
	"countd_source_position", "countd_source_end", "countd_source_lag_messages", "countd_source_lag_seconds", "countd_source_state",
	"countd_tls_cert_expiry_seconds", "countd_keyspace_limit_used_ratio",
}

type referenceMetric struct {
	name, kind, help string
	labels           []string
}

// metricsOf returns the metrics of a node that runs every part with metrics. It leaves out the
// metrics of client_golang's collectors, which differ by operating system.
func metricsOf(t *testing.T) []referenceMetric {
	t.Helper()
	p := startedWithEverything(t)
	kinds := map[string]string{}
	families, err := p.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		kinds[f.GetName()] = strings.ToLower(f.GetType().String())
	}
	descs := make(chan *prometheus.Desc, 1000)
	p.registry.Describe(descs)
	close(descs)
	byName := map[string]referenceMetric{}
	form := regexp.MustCompile(`^Desc\{fqName: "([^"]+)", help: (".*"), constLabels: \{(.*)\}, variableLabels: \{(.*)\}\}$`)
	for d := range descs {
		parts := form.FindStringSubmatch(d.String())
		if parts == nil {
			t.Fatalf("cannot read %s", d)
		}
		m := byName[parts[1]]
		m.name = parts[1]
		if !strings.HasPrefix(m.name, "countd_") {
			continue
		}
		if _, err := fmt.Sscanf(parts[2], "%q", &m.help); err != nil {
			t.Fatalf("the help of %s: %v", m.name, err)
		}
		for _, l := range regexp.MustCompile(`(\w+)="`).FindAllStringSubmatch(parts[3], -1) {
			m.labels = append(m.labels, l[1])
		}
		if parts[4] != "" {
			m.labels = append(m.labels, strings.Split(parts[4], ",")...)
		}
		slices.Sort(m.labels)
		m.labels = slices.Compact(m.labels)
		switch m.kind = kinds[m.name]; {
		case m.kind != "":
		case strings.HasSuffix(m.name, "_total"):
			m.kind = "counter"
		case slices.Contains(unsampledGauges, m.name):
			m.kind = "gauge"
		default:
			t.Errorf("%s has no sample that shows its type", m.name)
		}
		byName[m.name] = m
	}
	return slices.SortedFunc(maps.Values(byName), func(a, b referenceMetric) int { return cmp.Compare(a.name, b.name) })
}

// startedWithEverything starts a node with every part that has metrics.
func startedWithEverything(t *testing.T) *process {
	t.Helper()
	c := newConfig()
	dir := t.TempDir()
	args := []string{"--data-dir=" + filepath.Join(dir, "data"), "--auth=permissive", "--audit-log=" + filepath.Join(dir, "audit.log"), "--disk-reserve=0"}
	for i, addr := range proctest.FreePorts(t, 4) {
		args = append(args, "--"+[]string{"http-addr", "cluster-addr", "gossip-addr", "redis-addr"}[i]+"="+addr)
	}
	if err := c.flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	if err := c.resolve(func(string) (string, bool) { return "", false }); err != nil {
		t.Fatal(err)
	}
	p, err := start(c, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.stop(0); err != nil {
			t.Error(err)
		}
	})
	for range 2 { // the second scrape contains samples about the first
		answer, err := http.Get("http://" + c.HTTPAddr + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
	}
	return p
}
