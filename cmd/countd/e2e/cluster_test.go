package e2e

import (
	"flag"
	"testing"
	"time"

	"github.com/countd/countd/internal/proctest"
)

var chaos = flag.Bool("chaos", false, "run the cluster's fault tests in their long form, with either log store")

// short returns inShort in the short form of a test, and inLong in the long form.
func short[T any](inShort, inLong T) T {
	if *chaos {
		return inLong
	}
	return inShort
}

const (
	faultPace = 20 * time.Millisecond
	// orderPace is the pace of the load while a test runs an operator's orders in its short form.
	// It is slow because such orders take seconds, and no request may fail meanwhile.
	orderPace = 50 * time.Millisecond
)

// newCluster starts a cluster. In the short form its keyspaces have few shards, to save time: the
// placement moves only one replica a second, and a write appends a log entry on three nodes for
// each shard that the write touches.
func newCluster(t *testing.T, options proctest.Options) *proctest.Cluster {
	t.Helper()
	if !*chaos {
		options.Shards = map[string]int{"posts": 3, "users": 2, "unread": 1, "feed": 2}
	}
	return proctest.NewCluster(t, bin, options)
}

// faultLoad starts the load of a test of faults. These tests are short, so they need this many
// clients to find errors.
func faultLoad(c *proctest.Cluster) *proctest.Load { return c.StartLoad(8, faultPace) }

// beside lets the short form of a test run in parallel with other tests, because they mostly wait.
// The long form runs alone, because it reports figures.
func beside(t *testing.T) {
	t.Helper()
	if !*chaos {
		t.Parallel()
	}
}

// stores returns the log stores with which a test runs. In the short form, it returns only inShort.
func stores(inShort string) []string {
	return short([]string{inShort}, []string{"boltdb", "shared"})
}
