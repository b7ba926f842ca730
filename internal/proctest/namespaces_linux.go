package proctest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// namespaces gives each node a network namespace. The namespace's only interface is a cable to the
// hub, which is a namespace with bridges:
//
//	node 0: eth0 10.0.0.1 ── p0 ┐
//	node 1: eth0 10.0.0.2 ── p1 ┼ b0        hub
//	node 2: eth0 10.0.0.3 ── p2 ─ b1
//
// Nodes on the same bridge reach each other. To cut a node off, its cable moves to another bridge.
// Both ends of the cable stay up, so packets into a cut are lost without an error. Clients enter
// the namespace of the node that they call, so they reach it whatever is cut. Other processes do
// not see these networks. The networks end with the test process.
type namespaces struct {
	hub   *namespace
	nodes []*namespace
}

const (
	bridgesMax  = 3 // bound on the parts of a divided cluster
	portHTTP    = 7400
	portCluster = 7401
	portGossip  = 7402
	portRedis   = 7403
)

// layNamespaces creates the networks of nodesMax nodes. It returns their sites, and the function
// that cuts the networks.
func layNamespaces(t testing.TB) (sites []Site, divide func(parts [][]int) error, err error) {
	n := &namespaces{}
	t.Cleanup(n.close)
	if n.hub, err = newNamespace(); err != nil {
		return nil, nil, err
	}
	for b := range bridgesMax {
		name := fmt.Sprintf("b%d", b)
		if err := n.hub.ip("link add "+name+" type bridge forward_delay 0", "link set "+name+" up"); err != nil {
			return nil, nil, err
		}
	}
	for i := range nodesMax {
		node, err := newNamespace()
		if err != nil {
			return nil, nil, err
		}
		n.nodes = append(n.nodes, node)
		host := fmt.Sprintf("10.0.0.%d", i+1)
		if err := n.plug(i, node, host); err != nil {
			return nil, nil, err
		}
		sites = append(sites, Site{
			HTTP: fmt.Sprintf("%s:%d", host, portHTTP), Cluster: fmt.Sprintf("%s:%d", host, portCluster),
			Gossip: fmt.Sprintf("%s:%d", host, portGossip), Redis: fmt.Sprintf("%s:%d", host, portRedis), Enter: node.enter,
		})
	}
	return sites, n.divide, nil
}

// plug lays the cable between a node and the hub.
func (n *namespaces) plug(number int, node *namespace, host string) error {
	port := fmt.Sprintf("p%d", number)
	return errors.Join(
		n.hub.ip(
			fmt.Sprintf("link add %s type veth peer name eth0 netns /proc/%d/fd/%d", port, os.Getpid(), node.fd),
			"link set "+port+" master b0 up",
		),
		node.ip("link set lo up", fmt.Sprintf("addr add %s/24 dev eth0", host), "link set eth0 up"),
	)
}

func (n *namespaces) divide(parts [][]int) error {
	if len(parts) >= bridgesMax {
		return fmt.Errorf("%d parts are more than %d bridges", len(parts)+1, bridgesMax)
	}
	bridgeOf := make([]int, len(n.nodes))
	for i, part := range parts {
		for _, number := range part {
			bridgeOf[number] = i + 1
		}
	}
	var moves []string
	for number, bridge := range bridgeOf {
		moves = append(moves, fmt.Sprintf("link set p%d master b%d", number, bridge))
	}
	return n.hub.ip(moves...)
}

func (n *namespaces) close() {
	for _, ns := range append(n.nodes, n.hub) {
		if ns != nil {
			_ = unix.Close(ns.fd) // ignore the error: nothing was written
		}
	}
}

// namespace is a network namespace that exists while fd is open or a process runs in it.
type namespace struct{ fd int }

func newNamespace() (ns *namespace, err error) {
	err = onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("cannot make a network namespace: %w", err)
		}
		fd, err := openThreadNet()
		ns = &namespace{fd}
		return err
	})
	if err != nil {
		return nil, err
	}
	return ns, nil
}

// enter runs f on a thread that is in the namespace.
func (n *namespace) enter(f func() error) error {
	return onThread(func() error {
		if err := unix.Setns(n.fd, unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("cannot enter a network namespace: %w", err)
		}
		return f()
	})
}

// ip runs the program ip once, with lines as its commands.
func (n *namespace) ip(lines ...string) error {
	cmd := exec.Command("ip", "-batch", "-")
	cmd.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := n.enter(cmd.Run); err != nil {
		return fmt.Errorf("cannot run ip: %w: %s", err, out.String())
	}
	return nil
}

// onThread runs f, which may change the network namespace of its thread. It then restores the
// namespace. If that fails, the thread is not used again.
func onThread(f func() error) error {
	runtime.LockOSThread()
	own, err := openThreadNet()
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer unix.Close(own)
	err = f()
	if back := unix.Setns(own, unix.CLONE_NEWNET); back != nil {
		return errors.Join(err, fmt.Errorf("cannot leave a network namespace: %w", back))
	}
	runtime.UnlockOSThread()
	return err
}

func openThreadNet() (int, error) {
	fd, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("cannot open the network namespace: %w", err)
	}
	return fd, nil
}
