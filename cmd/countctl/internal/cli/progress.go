package cli

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

// Sample is the progress of some work.
type Sample struct {
	Rows  int64
	Done  int64  // of total, in any unit: bytes of a file, rows of a keyspace
	Total int64  // 0 or less when not known
	Unit  string // of rows, in the singular; "" for row
}

// Meter shows progress on standard error: a bar on a terminal, otherwise a line every few
// seconds. startMeter starts its goroutine; stop stops it and waits for it.
type Meter struct {
	out   io.Writer
	now   func() Sample
	began time.Time
	first Sample
	bar   *progressbar.ProgressBar // nil for lines
	done  chan struct{}
	ended sync.WaitGroup
	print sync.Mutex // held while a line or the bar is written
}

// StartMeter starts a meter. Its goroutine calls now until stop.
func (c *CLI) StartMeter(now func() Sample) *Meter {
	m := &Meter{out: c.Err, now: now, began: time.Now(), first: now(), done: make(chan struct{})}
	every := lineEvery
	if IsTerminal(c.Err) {
		every = barEvery
		total := m.first.Total
		if total <= 0 {
			total = -1
		}
		m.bar = progressbar.NewOptions64(total,
			progressbar.OptionSetWriter(c.Err),
			progressbar.OptionSetWidth(barWidth),
			progressbar.OptionSetPredictTime(false), // for bytes; m estimates the time of the work
			progressbar.OptionSetElapsedTime(false),
			progressbar.OptionShowDescriptionAtLineEnd())
	}
	m.ended.Go(func() { m.run(every) })
	return m
}

func (m *Meter) run(every time.Duration) {
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

func (m *Meter) show() {
	m.print.Lock()
	defer m.print.Unlock()
	s := m.now()
	text := m.text(s, time.Since(m.began))
	if m.bar == nil {
		fmt.Fprintln(m.out, text)
		return
	}
	m.bar.Describe(text)
	at := s.Done
	if s.Total > 0 {
		at = min(at, s.Total)
	}
	_ = m.bar.Set64(at) // a failure to draw is not a failure of the work
}

// text is rows, or the sample's unit, rows a second and the time left.
func (m *Meter) text(s Sample, took time.Duration) string {
	unit := cmp.Or(s.Unit, "row")
	text := fmt.Sprintf("%s, %s/s", Counted(s.Rows, unit), Counted(PerSecond(s.Rows-m.first.Rows, took), unit))
	done := s.Done - m.first.Done
	if s.Total <= 0 || done <= 0 || s.Done > s.Total {
		return text
	}
	left := time.Duration(float64(took) * float64(s.Total-s.Done) / float64(done))
	if m.bar == nil {
		text += fmt.Sprintf(", %d %%", 100*s.Done/s.Total) // the bar shows its own
	}
	return fmt.Sprintf("%s, %v left", text, left.Round(time.Second))
}

// note writes a line among the progress.
func (m *Meter) note(format string, args ...any) {
	m.print.Lock()
	defer m.print.Unlock()
	if m.bar != nil {
		_ = m.bar.Clear()
	}
	fmt.Fprintf(m.out, format+"\n", args...)
}

// Stop ends the display and returns how long the work took.
func (m *Meter) Stop() time.Duration {
	took := time.Since(m.began)
	close(m.done)
	m.ended.Wait()
	if m.bar != nil {
		_ = m.bar.Clear()
	}
	return took
}

// PerSecond returns a rate, 0 if no time has passed.
func PerSecond(n int64, took time.Duration) int64 {
	if took <= 0 {
		return 0
	}
	return int64(float64(n) / took.Seconds())
}
