package e2e

import (
	"encoding/json"
	"os/exec"
	"regexp"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/countd/countd/internal/proctest"
	"github.com/countd/countd/internal/program"
)

// TestVersionsAgree checks that all commands, endpoints and logs name the same version.
func TestVersionsAgree(t *testing.T) {
	t.Parallel()
	n := proctest.NewNode(t, bin, t.TempDir())
	n.Args = append(n.Args, "--redis-addr", n.Redis)
	n.StartReady()
	command := func(name string, args ...string) string {
		out, err := exec.Command(name, args...).Output()
		if err != nil {
			t.Errorf("%s %q: %v", name, args, err)
		}
		return string(out)
	}
	client := redis.NewClient(&redis.Options{Addr: n.Redis})
	defer client.Close()
	info, err := client.Info(t.Context(), "server").Result()
	if err != nil {
		t.Error(err)
	}
	said := map[string]string{
		"countd version":             command(bin.Countd, "version"),
		"countd --version":           command(bin.Countd, "--version"),
		"countctl --version":         n.MustCtl("--version"),
		"countctl version, its own":  find(t, n.MustCtl("version", "-o", "json"), `"client": *"([^"]*)"`),
		"countctl version, a node's": find(t, n.MustCtl("version", "-o", "json"), `"server": *"([^"]*)"`),
		"countctl status":            n.MustCtl("status", "--groups"),
		"GET /":                      n.Text("/"),
		"GET /v1/version":            n.Text("/v1/version"),
		"GET /metrics":               find(t, n.Text("/metrics"), `(?m)^countd_build_info\{version="([^"]*)"\} 1$`),
		"INFO of Redis":              find(t, info, `(?m)^countd_version:(\S*)`),
		"the log":                    find(t, n.Log(), `msg="countd started" version=(\S*)`),
	}
	var status struct{ Nodes []struct{ Version string } }
	if err := json.Unmarshal([]byte(n.MustCtl("status", "-o", "json")), &status); err != nil || len(status.Nodes) != 1 {
		t.Fatalf("status has the nodes %+v, %v", status.Nodes, err)
	}
	whole := status.Nodes[0].Version // includes the commit if go build recorded one
	if m := regexp.MustCompile(`^(\d+\.\d+\.\d+)(\+[0-9a-f]{12}(\.dirty)?)?$`).FindStringSubmatch(whole); m == nil || m[1] != program.Version {
		t.Errorf("the program is %s, package program has %s", whole, program.Version)
	}
	word := regexp.MustCompile(`(^|[\s"])` + regexp.QuoteMeta(whole) + `($|[\s"])`)
	for where, text := range said {
		if !word.MatchString(text) {
			t.Errorf("%s does not name %s: %s", where, whole, text)
		}
	}
}

// find returns what the group of the pattern matches in text.
func find(t *testing.T, text, pattern string) string {
	t.Helper()
	m := regexp.MustCompile(pattern).FindStringSubmatch(text)
	if m == nil {
		t.Fatalf("%s is not in %s", pattern, text)
	}
	return m[1]
}
