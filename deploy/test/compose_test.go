package deploy

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
)

// project reads the compose file as docker compose does: it refuses unknown keys.
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

// composeNodes returns the services as nodes that runCluster runs.
func composeNodes(t *testing.T) (nodes []node) {
	t.Helper()
	p := project(t)
	for _, name := range p.ServiceNames() {
		s := p.Services[name]
		nodes = append(nodes, node{host: name, env: environment(s), args: s.Command, check: s.HealthCheck.Test[1:]})
	}
	return nodes
}
