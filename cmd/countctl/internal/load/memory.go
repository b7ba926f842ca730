package load

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/valyala/fasthttp"
)

// memoryEvery is the interval of the samples. It is short enough to see a lasting peak, and long
// enough to not load the server.
const memoryEvery = time.Second

// Memory is the resident memory of the server's process, as the server reports it.
type Memory struct {
	BeforeBytes uint64 `json:"before_bytes"` // memory before the run opened its connections
	MaxBytes    uint64 `json:"max_bytes"`    // largest sample until the end of the run
}

// memoryWatch samples the server's memory. watchMemory starts its goroutine; stop ends it
// and waits for it.
type memoryWatch struct {
	http *fasthttp.HostClient
	uri  string
	cfg  *Config
	seen Memory // owned by the goroutine until done is closed

	once       sync.Once
	quit, done chan struct{}
}

// watchMemory takes the first sample and returns a running memoryWatch. It returns an error if the
// server's metrics do not include its memory.
func watchMemory(cfg *Config) (*memoryWatch, error) {
	w := &memoryWatch{
		http: newClient(cfg), uri: cfg.Addr.String() + "/metrics", cfg: cfg,
		quit: make(chan struct{}), done: make(chan struct{}),
	}
	before, err := w.sample()
	if err != nil {
		return nil, fmt.Errorf("cannot see the server's memory: %w", err)
	}
	w.seen = Memory{BeforeBytes: before, MaxBytes: before}
	go w.run()
	return w, nil
}

func (w *memoryWatch) run() {
	defer close(w.done)
	tick := time.NewTicker(memoryEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-w.quit:
			return
		}
		if now, err := w.sample(); err == nil { // ignore an error: if the server is gone, the report has the errors of its requests
			w.seen.MaxBytes = max(w.seen.MaxBytes, now)
		}
	}
}

// stop ends the goroutine and returns the result. It may be called several times.
func (w *memoryWatch) stop() *Memory {
	w.once.Do(func() { close(w.quit) })
	<-w.done
	w.http.CloseIdleConnections()
	return &w.seen
}

// sample returns the resident bytes of the server's process.
func (w *memoryWatch) sample() (uint64, error) {
	req, resp := newRequest(w.cfg, http.MethodGet, w.uri), &fasthttp.Response{}
	if err := w.http.Do(req, resp); err != nil {
		return 0, err
	}
	if resp.StatusCode() != http.StatusOK {
		return 0, fmt.Errorf("%s answers %d", w.uri, resp.StatusCode())
	}
	return residentBytes(resp.Body())
}

var errNoMemory = errors.New("the metrics have no process_resident_memory_bytes")

// residentBytes returns the gauge process_resident_memory_bytes in metrics, a text in the
// Prometheus format.
func residentBytes(metrics []byte) (uint64, error) {
	for line := range bytes.Lines(metrics) {
		if value, ok := bytes.CutPrefix(line, []byte("process_resident_memory_bytes ")); ok {
			n, err := strconv.ParseFloat(string(bytes.TrimSpace(value)), 64)
			if err != nil || !(n >= 0 && n < 1<<63) {
				return 0, errNoMemory
			}
			return uint64(n), nil
		}
	}
	return 0, errNoMemory
}
