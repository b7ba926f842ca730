// Package e2e tests the built programs countd and countctl: over real sockets, with kill -9 and
// damaged files.
package e2e

import (
	"flag"
	"os"
	"testing"
	"time"

	"github.com/countd/countd/internal/proctest"
)

const (
	killRoundsDefault = 5
	onceForDefault    = 4 * time.Second
)

var (
	killRounds = flag.Int("kill-rounds", killRoundsDefault, "kills in TestKillUnderWriters")
	onceFor    = flag.Duration("once-for", onceForDefault, "how long producers send in TestOnceUnderKills")
	replayAll  = flag.Bool("replay-all", false, "have the tests that replay the stream replay all of it, TestReplayToFollowers over all graphs, and TestRealPostsInAndOut import all posts")
	allDamages = flag.Bool("all-damages", false, "have TestDamagedFiles damage each kind of file in each way, not a random part of them")
	smallDisks = flag.Bool("small-disks", false, "run the tests that mount a file system, as root")
	bin        proctest.Binaries
)

// eachLogStore runs a test once with each log store, and passes the flag --log-store to the test.
// Other tests use the log store that COUNTD_LOG_STORE selects (make e2e-boltdb).
func eachLogStore(t *testing.T, test func(t *testing.T, setting string)) {
	for _, store := range []string{"boltdb", "shared"} {
		t.Run(store, func(t *testing.T) { test(t, "--log-store="+store) })
	}
}

// long skips a test that takes more than a few seconds if only short tests run (make test). make
// test-all runs it.
func long(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("takes long: make test-all runs it")
	}
}

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(proctest.Run(m, func(b proctest.Binaries) { bin = b }))
}
