package clustertest

import (
	"errors"
	"testing"

	"github.com/countd/countd/internal/proctest"
)

// errNotCuttable is returned by a loopback network's divide.
var errNotCuttable = errors.New("nodes on the loopback interface cannot be cut off; the cluster is not Cuttable")

// newNetwork returns a network in which nodes can be isolated, or the loopback interface.
func newNetwork(t testing.TB, cuttable bool) network {
	t.Helper()
	if !cuttable {
		return &loopback{t: t}
	}
	n, err := newNamespaces(t)
	if err != nil {
		t.Skipf("nodes are cut off with network namespaces and a bridge, which takes root and the program ip: %v", err)
	}
	return n
}

// loopback has all nodes on the loopback interface.
type loopback struct {
	t     testing.TB
	sites []proctest.Site
}

func (l *loopback) site(number int) proctest.Site {
	for len(l.sites) <= number {
		l.sites = append(l.sites, proctest.FreeSite(l.t))
	}
	return l.sites[number]
}

func (l *loopback) divide(parts [][]int) error {
	if len(parts) == 0 {
		return nil
	}
	return errNotCuttable
}
