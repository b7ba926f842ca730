//go:build !linux

package load

import "time"

func sleepExactly(wait time.Duration) { time.Sleep(wait) }
