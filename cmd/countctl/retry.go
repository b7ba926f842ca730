package main

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/countd/countd/client"
)

// retryForDefault outlives the restart of a node.
const retryForDefault = time.Minute

// retryFlag converts --retry-for to Retry.For, where 0 does not mean "never".
func retryFlag(d time.Duration) time.Duration {
	if d <= 0 {
		return client.RetryNever
	}
	return d
}

// connectWaiting returns a client that retries calls for so long and reports that from time
// to time: on the meter, once that runs.
func (c *cli) connectWaiting(retryFor time.Duration, m **meter) (*client.Client, error) {
	waiting := waitNotes{out: c.err}
	return c.connectFor(client.Retry{
		For:    retryFlag(retryFor),
		OnWait: func(err error, _ time.Duration) { waiting.note(*m, err) },
	})
}

// waitNotes reports retries from time to time.
type waitNotes struct {
	out io.Writer // before there is a meter
	mu  struct {
		sync.Mutex
		last time.Time
	}
}

func (w *waitNotes) note(m *meter, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if time.Since(w.mu.last) < lineEvery {
		return
	}
	w.mu.last = time.Now()
	const text = "waiting for the server: %v"
	if m == nil {
		fmt.Fprintf(w.out, text+"\n", err)
		return
	}
	m.note(text, err)
}
