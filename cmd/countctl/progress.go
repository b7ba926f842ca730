package main

import (
	"cmp"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
)

const (
	barEvery  = 200 * time.Millisecond // smooth to the eye
	lineEvery = 5 * time.Second        // readable in a log
	barWidth  = 24                     // leaves room for the numbers on 80 columns
)

// sample is the progress of some work.
type sample struct {
	rows  int64
	done  int64  // of total, in any unit: bytes of a file, rows of a keyspace
	total int64  // 0 or less when not known
	unit  string // of rows; "" for rows
}

// meter shows progress on standard error: a bar on a terminal, otherwise a line every few
// seconds. startMeter starts its goroutine; stop stops it and waits for it.
type meter struct {
	out   io.Writer
	now   func() sample
	began time.Time
	first sample
	bar   *progressbar.ProgressBar // nil for lines
	done  chan struct{}
	ended sync.WaitGroup
	print sync.Mutex // held while a line or the bar is written
}

// startMeter starts a meter. Its goroutine calls now until stop.
func (c *cli) startMeter(now func() sample) *meter {
	m := &meter{out: c.err, now: now, began: time.Now(), first: now(), done: make(chan struct{})}
	every := lineEvery
	if isTerminal(c.err) {
		every = barEvery
		total := m.first.total
		if total <= 0 {
			total = -1
		}
		m.bar = progressbar.NewOptions64(total,
			progressbar.OptionSetWriter(c.err),
			progressbar.OptionSetWidth(barWidth),
			progressbar.OptionSetPredictTime(false), // for bytes; m estimates the time of the work
			progressbar.OptionSetElapsedTime(false),
			progressbar.OptionShowDescriptionAtLineEnd())
	}
	m.ended.Go(func() { m.run(every) })
	return m
}

func (m *meter) run(every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-m.done:
			return
		case <-tick.C:
			m.show()
		}
	}
}

func (m *meter) show() {
	m.print.Lock()
	defer m.print.Unlock()
	s := m.now()
	text := m.text(s, time.Since(m.began))
	if m.bar == nil {
		fmt.Fprintln(m.out, text)
		return
	}
	m.bar.Describe(text)
	at := s.done
	if s.total > 0 {
		at = min(at, s.total)
	}
	_ = m.bar.Set64(at) // a failure to draw is not a failure of the work
}

// text is rows, or the sample's unit, rows a second and the time left.
func (m *meter) text(s sample, took time.Duration) string {
	unit := cmp.Or(s.unit, "rows")
	text := fmt.Sprintf("%s %s, %s %s/s", grouped(s.rows), unit, grouped(perSecond(s.rows-m.first.rows, took)), unit)
	done := s.done - m.first.done
	if s.total <= 0 || done <= 0 || s.done > s.total {
		return text
	}
	left := time.Duration(float64(took) * float64(s.total-s.done) / float64(done))
	if m.bar == nil {
		text += fmt.Sprintf(", %d %%", 100*s.done/s.total) // the bar shows its own
	}
	return fmt.Sprintf("%s, %v left", text, left.Round(time.Second))
}

// note writes a line among the progress.
func (m *meter) note(format string, args ...any) {
	m.print.Lock()
	defer m.print.Unlock()
	if m.bar != nil {
		_ = m.bar.Clear()
	}
	fmt.Fprintf(m.out, format+"\n", args...)
}

// stop ends the display and returns how long the work took.
func (m *meter) stop() time.Duration {
	took := time.Since(m.began)
	close(m.done)
	m.ended.Wait()
	if m.bar != nil {
		_ = m.bar.Clear()
	}
	return took
}

func perSecond(n int64, took time.Duration) int64 {
	if took <= 0 {
		return 0
	}
	return int64(float64(n) / took.Seconds())
}
