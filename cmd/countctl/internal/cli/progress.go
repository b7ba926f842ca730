package cli

import (
	"cmp"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/spf13/pflag"

	"github.com/countd/countd/client"
)

const (
	redrawEvery = 200 * time.Millisecond // short enough to look smooth
	lineEvery   = 5 * time.Second        // long enough to not flood a log
	// clearLine moves to the beginning of a terminal's line and erases it.
	clearLine = "\r\x1b[K"
	// RetryForDefault is the default of --retry-for. It is longer than a node needs to restart.
	RetryForDefault = time.Minute
)

// Sample is the progress of some work.
type Sample struct {
	Rows  int64
	Done  int64  // finished part of Total; both in the same unit, such as bytes of a file or rows of a keyspace
	Total int64  // 0 or less if unknown
	Unit  string // singular noun for what Rows counts; "" means row
}

// Meter shows progress on standard error. On a terminal it redraws one line; otherwise it prints a
// line every few seconds. StartMeter starts its goroutine. Stop ends the goroutine and waits for
// it.
type Meter struct {
	out    io.Writer
	redraw bool // out is a terminal
	sample func() Sample
	began  time.Time
	first  Sample
	done   chan struct{}
	ended  sync.WaitGroup
	print  sync.Mutex // held while a line is written
}

// StartMeter starts the meter of the command. The meter's goroutine calls sample until Stop.
func (c *CLI) StartMeter(sample func() Sample) *Meter {
	m := &Meter{out: c.Err, redraw: IsTerminal(c.Err), sample: sample, began: time.Now(), first: sample(), done: make(chan struct{})}
	c.meter = m
	m.ended.Go(m.run)
	return m
}

func (m *Meter) run() {
	every := lineEvery
	if m.redraw {
		every = redrawEvery
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-m.done:
			return
		case <-tick.C:
			m.print.Lock()
			if text := m.text(m.sample(), time.Since(m.began)); m.redraw {
				fmt.Fprint(m.out, clearLine, text)
			} else {
				fmt.Fprintln(m.out, text)
			}
			m.print.Unlock()
		}
	}
}

// text returns the rows, the rows per second, the share that is done and the time left.
func (m *Meter) text(s Sample, took time.Duration) string {
	unit := cmp.Or(s.Unit, "row")
	text := fmt.Sprintf("%s, %s/s", Counted(s.Rows, unit), Counted(PerSecond(s.Rows-m.first.Rows, took), unit))
	done := s.Done - m.first.Done
	if s.Total <= 0 || done <= 0 || s.Done > s.Total {
		return text
	}
	left := time.Duration(float64(took) * float64(s.Total-s.Done) / float64(done))
	return fmt.Sprintf("%s, %d %%, %v left", text, 100*s.Done/s.Total, left.Round(time.Second))
}

// note prints a line above the line of progress.
func (m *Meter) note(text string) {
	m.print.Lock()
	defer m.print.Unlock()
	if m.redraw {
		fmt.Fprint(m.out, clearLine)
	}
	fmt.Fprintln(m.out, text)
}

// Stop ends the display and returns how long the work took.
func (m *Meter) Stop() time.Duration {
	took := time.Since(m.began)
	close(m.done)
	m.ended.Wait()
	if m.redraw {
		fmt.Fprint(m.out, clearLine)
	}
	return took
}

// PerSecond divides n by the seconds of took. It returns 0 if took is 0.
func PerSecond(n int64, took time.Duration) int64 {
	if took <= 0 {
		return 0
	}
	return int64(float64(n) / took.Seconds())
}

// RetryFlag adds --retry-for.
func RetryFlag(flags *pflag.FlagSet, retryFor *time.Duration) {
	DurationFlag(flags, retryFor, "retry-for", RetryForDefault, "how long to repeat a request while the server is busy or unreachable")
}

// Retry returns a client.Retry that repeats calls for up to retryFor. While the client repeats a
// call, the Retry prints the reason, at most once in lineEvery. If the command has a Meter, the
// Meter prints the reason.
func (c *CLI) Retry(retryFor time.Duration) client.Retry {
	if retryFor <= 0 {
		retryFor = client.RetryNever // because 0 would mean the client's default
	}
	var mu sync.Mutex
	var last time.Time // under mu
	return client.Retry{For: retryFor, OnWait: func(err error, _ time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		if time.Since(last) < lineEvery {
			return
		}
		last = time.Now()
		text := fmt.Sprintf("waiting for the server: %v", err)
		if c.meter == nil {
			c.Say("%s", text)
			return
		}
		c.meter.note(text)
	}}
}

// ConnectWaiting is like Connect, but the client repeats calls as Retry defines.
func (c *CLI) ConnectWaiting(retryFor time.Duration) (*client.Client, error) {
	return c.ConnectFor(c.Retry(retryFor))
}
