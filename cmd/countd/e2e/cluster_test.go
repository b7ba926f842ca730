package e2e

import (
	"flag"
	"time"
)

// agreeTimeout is how soon after a fault all replicas must be alike.
const agreeTimeout = 5 * time.Second

var chaos = flag.Bool("chaos", false, "run the cluster's fault tests in their long form, with either log store")

// short returns the first in the short form of a test and the second in the long
// one.
func short[T any](inShort, inLong T) T {
	if *chaos {
		return inLong
	}
	return inShort
}

// stores returns the log stores that a test runs with: one in its short form.
func stores(inShort string) []string {
	return short([]string{inShort}, []string{"boltdb", "wal"})
}
