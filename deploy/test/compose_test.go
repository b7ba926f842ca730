package deploy

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
)

// project reads the compose file as docker compose does, which refuses unknown keys.
func project(t *testing.T) *types.Project {
	t.Helper()
	path, err := filepath.Abs(repository + "/deploy/compose.yaml")
	do(t, err)
	content, err := os.ReadFile(path)
	do(t, err)
	p, err := loader.LoadWithContext(t.Context(), types.ConfigDetails{
		WorkingDir: filepath.Dir(path), ConfigFiles: []types.ConfigFile{{Filename: path, Content: content}},
	})
	do(t, err)
	return p
}

// environment returns the environment of a service as NAME=VALUE.
func environment(s types.ServiceConfig) (env []string) {
	for name, value := range s.Environment {
		env = append(env, name+"="+*value)
	}
	return env
}

func TestCompose(t *testing.T) {
	p := project(t)
	if names := p.ServiceNames(); !slices.Equal(names, []string{"n1", "n2", "n3"}) {
		t.Fatalf("services %q", names)
	}
	taken := map[string]string{}
	for name, s := range p.Services {
		checkSettings(t, environment(s), s.Command)
		if s.Build == nil || filepath.Join(s.Build.Context, s.Build.Dockerfile) != mustAbs(t, repository+"/deploy/image/Dockerfile") {
			t.Errorf("%s: build %+v", name, s.Build)
		}
		if grace := time.Duration(*s.StopGracePeriod); grace < 15*time.Second {
			t.Errorf("%s: a stop takes up to 10 s and the shutdown delay, and gets %v", name, grace)
		}
		if len(s.Volumes) != 1 || s.Volumes[0].Source != name || s.Volumes[0].Target != "/var/lib/countd" || p.Volumes[name].Name == "" {
			t.Errorf("%s: volumes %+v", name, s.Volumes)
		}
		if s.HealthCheck == nil || s.HealthCheck.Test[0] != "CMD" {
			t.Errorf("%s: check %+v", name, s.HealthCheck)
		}
		if len(s.Ports) != 2 {
			t.Errorf("%s: ports %+v", name, s.Ports)
		}
		for _, port := range s.Ports {
			if ip, err := netip.ParseAddr(port.HostIP); err != nil || !ip.IsLoopback() {
				t.Errorf("%s: port %+v is open to other machines", name, port)
			}
			if other := taken[port.Published]; other != "" {
				t.Errorf("%s and %s have port %s", other, name, port.Published)
			}
			taken[port.Published] = name
		}
	}
}

func mustAbs(t *testing.T, path string) string {
	path, err := filepath.Abs(path)
	do(t, err)
	return path
}

// testComposeRuns runs the three services of the compose file. Their names resolve to loopback addresses, and to others
// after a restart, as those of containers and pods do:
//
//  1. The nodes form one cluster, and its catalog has their names, not their addresses.
//  2. A count is at each node, also after all have moved to new addresses.
//  3. Each passes the check of its service, and ends with 0.
func testComposeRuns(t *testing.T, of *image) {
	p, shared := project(t), network(t)
	nodes := map[string]*container{}
	for _, phase := range []int{1, 2} {
		hosts, ip := "127.0.0.1 localhost\n", map[string]string{}
		for i, name := range p.ServiceNames() {
			ip[name] = fmt.Sprintf("127.0.%d.%d", phase, i+1)
			hosts += ip[name] + " " + name + "\n"
		}
		for name, s := range p.Services {
			if nodes[name] == nil {
				nodes[name] = newContainer(t, of, shared)
			}
			c := nodes[name]
			// In one network namespace, all interfaces would be those of all nodes.
			c.env = append(slices.Clone(of.env), "COUNTCTL_ADDR="+ip[name])
			for _, e := range environment(s) {
				c.env = append(c.env, strings.ReplaceAll(e, "0.0.0.0", ip[name]))
			}
			c.hosts(hosts)
			c.start(s.Command...)
		}
		for name := range nodes {
			nodes[name].ok("/usr/bin/countctl", "status", "--wait", startMax)
		}
		if phase == 1 {
			nodes["n1"].ok("/usr/bin/countctl", "incr", "1", "like=3")
		}
		for name, c := range nodes {
			if out := c.ok("/usr/bin/countctl", "get", "1", "-o", "json"); !strings.Contains(out, `"like":3`) {
				t.Errorf("%s counts %s", name, out)
			}
			c.ok(p.Services[name].HealthCheck.Test[1:]...)
			listed := c.ok("/usr/bin/countctl", "node", "list", "-o", "json")
			for other := range nodes {
				if !strings.Contains(listed, `"`+other+`:7401"`) {
					t.Errorf("%s lists %s", name, listed)
				}
			}
		}
		for name, c := range nodes {
			if code := c.stop(); code != 0 {
				t.Errorf("%s: exit %d after SIGTERM", name, code)
			}
		}
	}
}
