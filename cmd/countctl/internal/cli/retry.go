package cli

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/countd/countd/client"
)

// RetryForDefault outlives the restart of a node.
const RetryForDefault = time.Minute

// RetryFlag converts --retry-for to Retry.For, where 0 does not mean "never".
func RetryFlag(d time.Duration) time.Duration {
	if d <= 0 {
		return client.RetryNever
	}
	return d
}

// ConnectWaiting returns a client that retries calls for so long and reports that from time
// to time: on the meter, once that runs.
func (c *CLI) ConnectWaiting(retryFor time.Duration, m **Meter) (*client.Client, error) {
	waiting := WaitNotes{Out: c.Err}
	return c.ConnectFor(client.Retry{
		For:    RetryFlag(retryFor),
		OnWait: func(err error, _ time.Duration) { waiting.Note(*m, err) },
	})
}

// WaitNotes reports retries from time to time.
type WaitNotes struct {
	Out io.Writer // before there is a meter
	mu  struct {
		sync.Mutex
		last time.Time
	}
}

// Note reports a retry on the meter or, before there is one, on w's output.
func (w *WaitNotes) Note(m *Meter, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if time.Since(w.mu.last) < lineEvery {
		return
	}
	w.mu.last = time.Now()
	const text = "waiting for the server: %v"
	if m == nil {
		fmt.Fprintf(w.Out, text+"\n", err)
		return
	}
	m.note(text, err)
}
