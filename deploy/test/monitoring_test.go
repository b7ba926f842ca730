package deploy

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"sigs.k8s.io/yaml"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/proctest"
)

const (
	monitoring = repository + "/deploy/monitoring/"
	rulesFile  = monitoring + "countd.rules.yml"
	runbookURL = "https://github.com/countd/countd/blob/main/docs/OPERATING.md#"
)

// unmeasured has the warnings of countctl status for which no metric exists.
var unmeasured = []string{
	"node_not_ready", "node_draining", "node_leaving", "join_ignored", "zones_mixed", "insecure", // states that operators choose, or that last only a moment
	"group_degraded", "group_few_voters", "group_moving", // consequences of what CountdNodeDead reports; the cluster repairs them
	"replicas_differ", "disk_hangs", // only countctl verify finds the former; a node whose disk hangs exits after 10 s
	"shards_uneven", "id_layout_misfit", "version_held",
}

type rule struct {
	Record, Alert, Expr string
	For                 string
	Labels, Annotations map[string]string
}

func readText(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	do(t, err)
	return string(text)
}

func readRules(t *testing.T) (rules []rule) {
	t.Helper()
	var file struct{ Groups []struct{ Rules []rule } }
	do(t, yaml.Unmarshal([]byte(readText(t, rulesFile)), &file))
	for _, g := range file.Groups {
		rules = append(rules, g.Rules...)
	}
	return rules
}

func promtool(t *testing.T, args ...string) {
	t.Helper()
	path, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool (Debian: prometheus) is not installed; .ci/run installs it")
	}
	if out, err := exec.Command(path, args...).CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

func TestRules(t *testing.T) {
	promtool(t, "check", "rules", rulesFile)
	promtool(t, "test", "rules", monitoring+"countd.rules.test.yml")

	path := filepath.Join(t.TempDir(), "prometheus.yml")
	config := constant(t, "docs/MONITORING.md", "(?s)```yaml\n(.*?)```")
	do(t, os.WriteFile(path, []byte(config), 0o644))
	promtool(t, "check", "config", "--syntax-only", path)
}

// TestAlerts checks that each alert has the labels and annotations that its reader needs, links to
// a heading of the runbook, and has two unit tests. Two thresholds must equal those of countctl
// status.
func TestAlerts(t *testing.T) {
	operating := readText(t, repository+"/docs/OPERATING.md")
	anchors := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$|<a id="([^"]+)">`).FindAllStringSubmatch(operating, -1) {
		kept := regexp.MustCompile(`[^a-z0-9_ -]`).ReplaceAllString(strings.ToLower(m[1]), "")
		anchors[strings.ReplaceAll(kept, " ", "-")+m[2]] = true
	}
	tests := readText(t, monitoring+"countd.rules.test.yml")
	linked := map[string]bool{}
	for _, r := range readRules(t) {
		if r.Alert == "" {
			continue
		}
		heading, ok := strings.CutPrefix(r.Annotations["runbook_url"], runbookURL)
		linked[heading] = true
		if !ok || !anchors[heading] {
			t.Errorf("%s: docs/OPERATING.md has no heading %q", r.Alert, r.Annotations["runbook_url"])
		}
		if r.For == "" || r.Annotations["summary"] == "" || !strings.Contains(r.Annotations["description"], "$value") && !strings.Contains(r.Annotations["description"], "| value") {
			t.Errorf("%s lacks for, a summary, or a description with the value", r.Alert)
		}
		if s := r.Labels["severity"]; s != "critical" && s != "warning" {
			t.Errorf("%s has severity %q", r.Alert, s)
		}
		if !strings.Contains(tests, `labels: 'ALERTS{alertname="`+r.Alert+`"`) {
			t.Errorf("no test fires %s", r.Alert)
		}
		if !regexp.MustCompile(`expr: count[a-z_]*\(ALERTS\{alertname="` + r.Alert + `".*\n.*\n +exp_samples:( \[\]|\n.*'\{\}', value: 0)`).MatchString(tests) {
			t.Errorf("no test shows what does not fire %s", r.Alert)
		}
		for alert, threshold := range map[string]string{
			"CountdReplicaLags":        "> " + constant(t, "console/ui/warnings.js", `lagWarned = (\d+)`),
			"CountdCertificateExpires": "< " + constant(t, "internal/certs/source.go", `expiresSoon = (\d+) \* 24 \* time.Hour`) + " * 86400",
		} {
			if r.Alert == alert && !strings.HasSuffix(r.Expr, threshold) {
				t.Errorf("%s is %s, and countctl status warns %s", alert, r.Expr, threshold)
			}
		}
	}
	for _, m := range regexp.MustCompile(`(?:warn\(|code: )'([a-z_]+)'`).FindAllStringSubmatch(readText(t, repository+"/console/ui/warnings.js"), -1) {
		if linked[m[1]] == slices.Contains(unmeasured, m[1]) {
			t.Errorf("the warning %s needs an alert with its heading, or to be one of unmeasured", m[1])
		}
	}
}

// constant returns the part of a source file that matches the group in pattern.
func constant(t *testing.T, file, pattern string) string {
	t.Helper()
	m := regexp.MustCompile(pattern).FindStringSubmatch(readText(t, repository+"/"+file))
	if m == nil {
		t.Fatalf("%s has no %s", file, pattern)
	}
	return m[1]
}

func readDashboard(t *testing.T) (d dashboard.Dashboard) {
	t.Helper()
	plugins.RegisterDefaultPlugins()
	text := readText(t, monitoring+"countd-dashboard.json")
	if err := d.UnmarshalJSONStrict([]byte(text)); err != nil && err.Error() != "" { // UnmarshalJSONStrict returns an error with an empty text if it found nothing wrong
		t.Fatalf("the dashboard lacks a field, or has one that Grafana does not have: %v", err)
	}
	do(t, d.Validate())
	return d
}

type panel struct {
	Title, Type, Description string
	GridPos                  struct{ X, Y, W, H int }
	Datasource               struct{ Type, UID string }
	FieldConfig              struct{ Defaults struct{ Unit string } }
	Targets                  []struct {
		RefID, Expr, LegendFormat string
		Datasource                struct{ UID string }
	}
}

func panels(t *testing.T) (all []panel) {
	t.Helper()
	var d struct{ Panels []panel }
	do(t, json.Unmarshal([]byte(readText(t, monitoring+"countd-dashboard.json")), &d))
	return d.Panels
}

func TestDashboard(t *testing.T) {
	d := readDashboard(t)
	var variables []string
	for _, v := range d.Templating.List {
		variables = append(variables, v.Name)
	}
	if want := []string{"datasource", "job", "node"}; !slices.Equal(variables, want) {
		t.Errorf("variables %q", variables)
	}
	units := []string{"short", "percentunit", "wps", "rps", "reqps", "s", "bytes"} // names of Grafana
	titles, taken := map[string]bool{}, map[[2]int]string{}
	shown := ""
	for _, p := range panels(t) {
		if titles[p.Title] {
			t.Errorf("two panels are %q", p.Title)
		}
		titles[p.Title] = true
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				at := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				if at[0] >= 24 || taken[at] != "" {
					t.Fatalf("%q is beyond the page, or covers %q", p.Title, taken[at])
				}
				taken[at] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		if p.Description == "" || !slices.Contains(units, p.FieldConfig.Defaults.Unit) || len(p.Targets) == 0 || p.Datasource.UID != "${datasource}" {
			t.Errorf("%q lacks a description, a unit, a target or the data source", p.Title)
		}
		for _, target := range p.Targets {
			shown += target.Expr + "\n"
			if target.Datasource.UID != "${datasource}" || !strings.Contains(target.Expr, `job="$job"`) {
				t.Errorf("%q asks another data source, or other clusters: %s", p.Title, target.Expr)
			}
			if p.Type == "timeseries" && !strings.Contains(target.Expr, `instance=~"$node"`) {
				t.Errorf("%q shows all nodes: %s", p.Title, target.Expr)
			}
		}
	}
	for _, class := range []string{"read", "write"} { // the console's graphs
		if endpoints := constant(t, "console/ui/rates.js", class+`: /\^\((.+)\)\$/,`); !strings.Contains(shown, `endpoint=~"`+endpoints+`"`) {
			t.Errorf("no panel has the endpoints that %s in console/ui/rates.js", class)
		}
	}
}

// metrics is what a node serves at /metrics, and docs/REFERENCE.md.
type metrics struct{ all, reference string }

func (m metrics) has(name string) bool {
	return strings.Contains(m.all, "\n"+name+"{") || strings.Contains(m.all, "\n"+name+" ")
}

// problem returns why a matcher in a metric's expression may match nothing, or "" if it can match.
// A node without faults does not serve every label value; the reference has the others.
func (m metrics) problem(name, label, operator, value string) string {
	if !regexp.MustCompile(`(?m)^` + name + `\{.*\b` + label + `="`).MatchString(m.all) {
		return name + " has no label " + label
	}
	row := regexp.MustCompile("(?m)^\\| `" + name + "` .*$").FindString(m.reference)
	if operator == "=" && !strings.Contains(m.all, label+`="`+value+`"`) && !regexp.MustCompile(`\b`+value+`\b`).MatchString(row) {
		return fmt.Sprintf("%s has no %s=%q", name, label, value)
	}
	return ""
}

// serve returns the metrics of a node that has served clients and reads a source.
func serve(t *testing.T) metrics {
	t.Helper()
	program, err := countd()
	do(t, err)
	dir := t.TempDir()
	ca := must.NewAuthority(t)
	files := must.WriteCert(t, dir, "tls", ca.Issue(must.NodeLeaf("node-0")))
	n := proctest.NewNode(t, proctest.Binaries{Countd: program}, filepath.Join(dir, "data"), "--disk-reserve=16MiB",
		"--tls-cert", files.Cert, "--tls-key", files.Key, "--auth=permissive", "--audit-log", filepath.Join(dir, "audit.log"))
	n.UseTLS(&tls.Config{RootCAs: ca.Pool()})
	n.StartReady()
	n.MustCall("POST", "/v1/counters/posts/incr", map[string]any{"ops": []any{map[string]any{"id": "1", "add": map[string]int{"like": 1}}}}, nil)
	n.MustCall("GET", "/v1/counters/posts/1", nil, nil)
	n.MustCall("POST", "/v1/keyspaces/posts/limits", map[string]int{"rows": 1000}, nil)

	queue := proctest.StartRedis(t)
	conn, err := net.Dial("tcp", queue)
	do(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "XADD likes * message {}\r\n")
	do(t, err)
	n.MustCall("PUT", "/v1/sources/likes", map[string]string{"type": "redis-stream", "addr": queue, "key": "likes"}, nil)
	m := metrics{reference: readText(t, repository+"/docs/REFERENCE.md")}
	for end := time.Now().Add(must.BecomeMax); !m.has("countd_source_lag_seconds") || !m.has("countd_keyspace_limit_used_ratio"); time.Sleep(100 * time.Millisecond) {
		if m.all = "\n" + n.Text("/metrics"); time.Now().After(end) {
			t.Fatal("the node does not read the source, or shows no use of a limit")
		}
	}
	return m
}

// TestExpressions parses each expression of rules and dashboard. It checks that a running node
// serves each metric, label and value in them.
func TestExpressions(t *testing.T) {
	expressions := map[string]string{} // the key names the rule or panel
	recorded := []string{"up", "ALERTS"}
	for _, r := range readRules(t) {
		expressions[r.Alert+r.Record] = r.Expr
		recorded = append(recorded, r.Record)
	}
	legends := map[string]string{}
	for _, p := range panels(t) {
		for _, target := range p.Targets {
			place := p.Title + ", " + target.RefID
			expressions[place], legends[place] = target.Expr, target.LegendFormat
		}
	}
	var file bytes.Buffer
	file.WriteString("groups: [{name: dashboard, rules: [\n")
	for place, expr := range expressions {
		expr = strings.ReplaceAll(expr, "$__rate_interval", "5m")
		expressions[place] = expr
		fmt.Fprintf(&file, "{record: x, labels: {place: %q}, expr: %q},\n", place, expr)
	}
	file.WriteString("]}]\n")
	path := filepath.Join(t.TempDir(), "expressions.yml")
	do(t, os.WriteFile(path, file.Bytes(), 0o644))
	promtool(t, "check", "rules", "--lint=none", path)

	served := serve(t)
	labels := []string{"job", "instance", "alertname", "alertstate", "severity"}
	for _, m := range regexp.MustCompile(`[{,](\w+)="`).FindAllStringSubmatch(served.all, -1) {
		labels = append(labels, m[1])
	}
	quoted := regexp.MustCompile(`"[^"]*"`)
	named := 0
	for place, expr := range expressions {
		bare := quoted.ReplaceAllString(expr, `""`)
		if strings.Contains(bare, "countd_redis_") && strings.ContainsAny(bare, "+-*/") {
			t.Errorf("%s computes with countd_redis_…, which a node without --redis-addr does not serve", place)
		}
		for _, m := range regexp.MustCompile(`[a-zA-Z_:][a-zA-Z0-9_:]*`).FindAllString(bare, -1) {
			if strings.HasPrefix(m, "countd_") || strings.HasPrefix(m, "process_") || strings.HasPrefix(m, "go_") || strings.Contains(m, ":") || m == "up" {
				named++
				if !slices.Contains(recorded, m) && !served.has(m) {
					t.Errorf("%s: no node serves %s", place, m)
				}
			}
		}
		for _, m := range regexp.MustCompile(`(\w+)\{([^}]*)\}`).FindAllStringSubmatch(expr, -1) {
			if slices.Contains(recorded, m[1]) {
				continue
			}
			for _, matcher := range regexp.MustCompile(`(\w+)(=~|!~|!=|=)"([^"]*)"`).FindAllStringSubmatch(m[2], -1) {
				if matcher[1] == "job" || matcher[1] == "instance" {
					continue
				}
				if problem := served.problem(m[1], matcher[1], matcher[2], matcher[3]); problem != "" {
					t.Errorf("%s: %s", place, problem)
				}
			}
		}
		for _, m := range regexp.MustCompile(`(?:by|on|group_left) \(([^)]*)\)|\{\{(\w+)\}\}`).FindAllStringSubmatch(bare+legends[place], -1) {
			for label := range strings.SplitSeq(m[1]+m[2], ",") {
				if label = strings.TrimSpace(label); label != "" && !slices.Contains(labels, label) {
					t.Errorf("%s: no metric has a label %s", place, label)
				}
			}
		}
	}
	if named < 60 {
		t.Errorf("%d metrics were found in expressions", named)
	}
}
