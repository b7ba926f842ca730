package load

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/valyala/fasthttp"
)

const (
	// latencyMax is the largest latency that is recorded. A longer latency is recorded as
	// latencyMax.
	latencyMax = time.Hour
	// latencyMin is the smallest difference between two recorded latencies.
	latencyMin = time.Microsecond
	// latencyDigits is the number of significant digits. With 2, each percentile has an error of at
	// most 1 %, and the histograms of 1,024 workers need at most 60 MB.
	latencyDigits = 2
	// brokenPause is the pause after a request without an answer. It keeps workers from spinning if
	// the server is unreachable.
	brokenPause = 10 * time.Millisecond
)

// tally counts the requests of one worker: either its reads or its writes.
type tally struct {
	latency *hdrhistogram.Histogram // latency in nanoseconds of the requests that succeeded
	ok      int64                   // requests that succeeded
	ops     int64                   // number of ops in the successful requests
	errors  map[string]int64        // number of failed requests, by error code
	refused int64                   // number of failed requests that changed nothing on the server
	unknown int64                   // number of increments in failed requests that may have been applied
	resent  int64                   // number of repeated requests, sent to learn an unknown outcome
}

func newTally() *tally {
	return &tally{latency: newHistogram(), errors: map[string]int64{}}
}

func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(int64(latencyMin), int64(latencyMax), latencyDigits)
}

func record(h *hdrhistogram.Histogram, latency time.Duration) {
	h.RecordValue(int64(min(max(latency, 0), latencyMax))) // cannot fail, because the value is in range
}

// worker has one connection and one request in flight. It owns the buffers of its requests
// and reuses them.
type worker struct {
	cfg     *Config
	http    *fasthttp.HostClient
	ids     *picker
	reads   *tally
	writes  *tally
	late    *hdrhistogram.Histogram // in an open loop: time from due to sent, for requests for which the worker was waiting
	answers *hdrhistogram.Histogram // in an open loop: time from sent to answered, for requests that succeeded

	base   []byte // URL of the keyspace
	member string // name of the JSON field with the id of an increment
	uri    []byte
	body   []byte
	get    *fasthttp.Request // request for one row
	page   *fasthttp.Request
	incr   *fasthttp.Request
	user   userRequest
	resp   *fasthttp.Response

	number  uint64
	post    uint64  // id of the latest post
	once    bool    // whether increments are numbered
	seq     uint64  // number of the latest increment
	refusal refusal // latest refusal
}

func newWorker(cfg *Config, each *atomic.Uint64, number uint64) *worker {
	base, member := cfg.Addr.String()+"/v1/counters/"+cfg.Keyspace, "id"
	if cfg.Keyspace == UnreadKeyspace {
		base, member = cfg.Addr.String()+"/v1/unread", "user"
	}
	w := &worker{
		cfg: cfg, ids: newPicker(&cfg.IDs, each, number), number: number, once: cfg.Once,
		reads: newTally(), writes: newTally(), late: newHistogram(), answers: newHistogram(),
		base: []byte(base), member: member,
		get:  newRequest(cfg, http.MethodGet, base),
		page: newRequest(cfg, http.MethodPost, base+"/get"),
		incr: newRequest(cfg, http.MethodPost, base+"/incr"),
		user: newUserRequest(cfg),
		resp: &fasthttp.Response{},
		http: newClient(cfg),
	}
	if cfg.Once {
		w.incr.Header.Set("Countd-Producer", rand.Text())
	}
	if cfg.Consistency != "" {
		w.get.Header.Set("consistency", cfg.Consistency)
		w.page.Header.Set("consistency", cfg.Consistency)
		w.user.Header.Set("consistency", cfg.Consistency)
	}
	if cfg.Deadline > 0 {
		for _, r := range []*fasthttp.Request{w.get, w.page, w.incr, w.user.Request} {
			r.Header.Set("Countd-Timeout", cfg.Deadline.String())
		}
	}
	return w
}

// newClient returns a client with one connection that does not repeat requests.
func newClient(cfg *Config) *fasthttp.HostClient {
	secure := cfg.TLS.Clone()
	if secure == nil {
		secure = &tls.Config{}
	}
	secure.ServerName = cfg.Addr.Hostname()
	return &fasthttp.HostClient{
		Addr:                          hostPort(cfg),
		IsTLS:                         cfg.Addr.Scheme == "https",
		TLSConfig:                     secure,
		MaxConns:                      1,
		MaxIdleConnDuration:           latencyMax, // the worker closes the connection itself
		ReadTimeout:                   cfg.Timeout,
		WriteTimeout:                  cfg.Timeout,
		NoDefaultUserAgentHeader:      true,
		DisableHeaderNamesNormalizing: true,
		DisablePathNormalizing:        true,
		// The HTTP client must not repeat a request, because it could count an increment twice.
		MaxIdemponentCallAttempts: 1,
		RetryIfErr:                func(*fasthttp.Request, int, error) (bool, bool) { return false, false },
	}
}

func newRequest(cfg *Config, method, uri string) *fasthttp.Request {
	r := &fasthttp.Request{}
	if cfg.Token != "" {
		r.Header.Set("Authorization", "Bearer "+cfg.Token)
	}
	r.Header.SetMethod(method)
	r.SetRequestURI(uri)
	if method == http.MethodPost {
		r.Header.SetContentType("application/json")
	}
	return r
}

func hostPort(cfg *Config) string {
	if cfg.Addr.Port() != "" {
		return cfg.Addr.Host
	}
	port := "80"
	if cfg.Addr.Scheme == "https" {
		port = "443"
	}
	return net.JoinHostPort(cfg.Addr.Hostname(), port)
}

// connect opens the connection with a read that is not part of the measurement.
func (w *worker) connect() error {
	w.prepareRead(w.cfg.IDs.idAt(0))
	if err := w.http.Do(w.get, w.resp); err != nil {
		return fmt.Errorf("cannot reach %s: %w", w.cfg.Addr, err)
	}
	if w.resp.StatusCode() != http.StatusOK {
		return fmt.Errorf("the server refuses a read: %d %s", w.resp.StatusCode(), readRefusal(w.resp).code)
	}
	return nil
}

func (w *worker) close() { w.http.CloseIdleConnections() }

// run sends a request each time the pacer's take returns, until the run is over.
func (w *worker) run(ctx context.Context, clock *pacer) {
	for {
		asked := time.Now()
		due, ok := clock.take(ctx)
		if !ok {
			return
		}
		sent := time.Now()
		if due.After(asked) {
			record(w.late, sent.Sub(due))
		}
		request, t, ops := w.prepare()
		if w.send(request, t) == done {
			now := time.Now()
			record(t.latency, now.Sub(due))
			record(w.answers, now.Sub(sent))
			t.ok++
			t.ops += ops
		}
	}
}

// prepare builds the next request. It returns the request, the tally that counts it and its number
// of ops.
func (w *worker) prepare() (*fasthttp.Request, *tally, int64) {
	op := w.cfg.Op
	if op == Mixed {
		op = Incr
		if w.ids.rand.Float64() < w.cfg.ReadShare {
			op = Page
		}
	}
	switch op {
	case Read:
		w.prepareRead(w.ids.next())
		return w.get, w.reads, 1
	case Page:
		w.body = append(w.appendIDs(append(w.body[:0], `{"ids":`...)), '}')
		w.page.SetBodyRaw(w.body)
		return w.page, w.reads, int64(w.cfg.Page)
	case Poll, Polls, Feed, Seen, Clear, Publish, Post, Timeline:
		return w.prepareUser()
	}
	w.prepareIncr()
	return w.incr, w.writes, int64(w.cfg.Batch)
}

func (w *worker) prepareRead(id uint64) {
	w.uri = append(w.uri[:0], w.base...)
	w.uri = append(w.uri, '/')
	w.uri = strconv.AppendUint(w.uri, id, 10)
	w.get.SetRequestURIBytes(w.uri)
}

// appendIDs appends the ids of the next page as a JSON list.
func (w *worker) appendIDs(b []byte) []byte {
	b = append(b, '[')
	for i := range w.cfg.Page {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendID(b, w.ids.next())
	}
	return append(b, ']')
}

func (w *worker) prepareIncr() {
	b := append(w.body[:0], '{')
	if w.cfg.NoResults {
		b = append(b, `"want":"none",`...)
	}
	b = append(b, `"ops":[`...)
	for i := range w.cfg.Batch {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(append(b, `{"`...), w.member...), `":`...)
		b = appendID(b, w.ids.next())
		b = append(b, `,"add":{"`...)
		b = append(b, w.cfg.Column...)
		b = append(b, `":1}}`...)
	}
	w.body = append(b, "]}"...)
	w.incr.SetBodyRaw(w.body)
	if w.once {
		w.seq++
		w.uri = strconv.AppendUint(w.uri[:0], w.seq, 10)
		w.incr.Header.SetBytesV("Countd-Seq", w.uri)
	}
}

func appendID(dst []byte, id uint64) []byte {
	dst = append(dst, '"')
	dst = strconv.AppendUint(dst, id, 10)
	return append(dst, '"')
}
