package deploy

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// node is a container of a cluster.
type node struct {
	host      string // the name by which the other nodes reach it
	env, args []string
	check     []string // command of its health check
}

// runCluster runs three nodes of the image. Their names resolve to loopback addresses. After a
// restart they resolve to different addresses, as the names of containers and pods do. The name
// shared resolves to all nodes. secrets writes files below a node's root; env is for countctl.
//
//  1. The nodes form one cluster. Its catalog has their names, not their addresses.
//  2. Each node returns the count, even after all nodes have moved to new addresses, and all
//     replicas are equal.
//  3. A backup reaches all nodes by their names.
//  4. Each node passes its health check, and exits with 0.
func runCluster(t *testing.T, of *image, nodes []node, shared string, secrets func(root string), env ...string) {
	t.Helper()
	const countctl = "/usr/bin/countctl"
	net := network(t)
	containers := make([]*container, len(nodes))
	for i := range nodes {
		containers[i] = newContainer(t, of, net)
		secrets(containers[i].root)
	}
	for _, phase := range []int{1, 2} {
		hosts := "127.0.0.1 localhost\n"
		for i, n := range nodes {
			hosts += fmt.Sprintf("127.0.%d.%d %s %s\n", phase, i+1, n.host, shared)
		}
		for i, n := range nodes {
			// All nodes share one network namespace, so a node must not listen on every interface.
			own := strings.NewReplacer("=0.0.0.0:", "="+n.host+":", "=:", "="+n.host+":")
			c := containers[i]
			c.env = slices.Concat(of.env, env)
			for _, e := range n.env {
				c.env = append(c.env, own.Replace(e))
			}
			var args []string
			for _, arg := range n.args {
				args = append(args, own.Replace(arg))
			}
			c.env = append(c.env, "COUNTCTL_ADDR="+scheme(args)+n.host+":7400")
			c.hosts(hosts)
			c.start(args...)
		}
		for _, c := range containers {
			c.ok(countctl, "status", "--wait", startMax)
		}
		if phase == 1 {
			containers[0].ok(countctl, "incr", "1", "like=3")
		}
		for i, c := range containers {
			if out := c.ok(countctl, "get", "1", "-o", "json"); !strings.Contains(out, `"like":3`) {
				t.Errorf("%s counts %s", nodes[i].host, out)
			}
			c.passes(nodes[i].check)
		}
		listed := containers[2].ok(countctl, "node", "list", "-o", "json")
		for _, n := range nodes {
			if !strings.Contains(listed, `"`+n.host+`:7401"`) {
				t.Errorf("the catalog lacks %s: %s", n.host, listed)
			}
		}
		containers[phase].ok(countctl, "verify")
		containers[phase].ok(countctl, "backup", fmt.Sprintf("/var/lib/countd/backup-%d", phase))
		for _, c := range containers {
			c.signal()
		}
		for i, c := range containers {
			if code := c.wait(); code != 0 {
				t.Errorf("%s: exit %d after SIGTERM", nodes[i].host, code)
			}
		}
	}
}

// scheme returns the scheme of the URLs of a node with these arguments.
func scheme(args []string) string {
	if slices.ContainsFunc(args, func(arg string) bool { return strings.HasPrefix(arg, "--tls-cert=") }) {
		return "https://"
	}
	return "http://"
}
