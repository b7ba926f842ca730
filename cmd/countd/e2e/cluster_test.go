package e2e

import (
	"flag"
	"testing"
	"time"
)

// agreeTimeout is how soon after a fault all replicas must be alike. The short form
// shares the machine with other tests, which may have it for seconds.
func agreeTimeout() time.Duration { return short(30*time.Second, 5*time.Second) }

var chaos = flag.Bool("chaos", false, "run the cluster's fault tests in their long form, with either log store")

// short returns the first in the short form of a test and the second in the long
// one.
func short[T any](inShort, inLong T) T {
	if *chaos {
		return inLong
	}
	return inShort
}

// beside lets the short form of a test run in parallel with others: they mostly wait. The
// long form runs alone, because it reports figures.
func beside(t *testing.T) {
	t.Helper()
	if !*chaos {
		t.Parallel()
	}
}

// stores returns the log stores that a test runs with: one in its short form.
func stores(inShort string) []string {
	return short([]string{inShort}, []string{"boltdb", "shared"})
}
