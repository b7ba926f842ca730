package main

import (
	"os"
	"runtime/debug"
)

// gcPercent is the collector's goal. The tables are nearly all of the heap and
// hold no pointers, so a cycle costs little more than the segments' headers;
// what a higher goal would buy in time is paid in memory of the tables' size.
const gcPercent = 25

// tuneCollector sets the collector for a heap of tables. The operator's GOGC
// stands if set, and GOMEMLIMIT is honoured by the runtime itself.
func tuneCollector() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
}
