package load

import (
	"bytes"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/valyala/fasthttp"
)

// resendFor bounds how long a worker repeats an increment of unknown outcome. It is longer than a
// server needs to restart.
const resendFor = 30 * time.Second

// resendPauseMax bounds the pause between two tries. The pause begins at brokenPause and doubles,
// to spare an overloaded server.
const resendPauseMax = time.Second

type outcome int

const (
	done    outcome = iota
	refused         // the server did not apply any of the request
	unknown         // the server may have applied all of the request, a part of it or nothing
)

// send sends a request, waits for its answer, and counts a failure in t. With Config.Once, it
// repeats an increment of unknown outcome.
func (w *worker) send(request *fasthttp.Request, t *tally) outcome {
	o, code := w.try(request)
	if o == unknown && w.once && request == w.incr {
		o, code = w.resend(code, t)
	}
	switch o {
	case done:
		return o
	case refused:
		t.refused++
	case unknown:
		if request == w.incr {
			t.unknown += int64(w.cfg.Batch)
		}
	}
	t.errors[code]++
	return o
}

// resend repeats the latest increment until a try succeeds or resendFor has passed. If a later try
// is refused, the outcome stays unknown, because the first try may have been applied.
func (w *worker) resend(code string, t *tally) (outcome, string) {
	pause := brokenPause
	for end := time.Now().Add(resendFor); time.Now().Before(end); pause = min(2*pause, resendPauseMax) {
		time.Sleep(pause)
		t.resent++
		if o, _ := w.try(w.incr); o == done {
			return o, ""
		}
	}
	return unknown, code
}

// try sends a request once. It returns the outcome and, if it failed, an error code.
func (w *worker) try(request *fasthttp.Request) (outcome, string) {
	if err := w.http.Do(request, w.resp); err != nil {
		time.Sleep(brokenPause)
		return unknown, codeOfBroken(err)
	}
	status := w.resp.StatusCode()
	if status == http.StatusOK {
		return done, ""
	}
	if w.refusal.status != status || !bytes.Equal(w.refusal.body, w.resp.Body()) {
		w.refusal = readRefusal(w.resp)
	}
	return w.refusal.outcome, w.refusal.code
}

// refusal is an answer with a status other than 200. Many refusals are identical, so a worker
// parses a refusal only if it differs from the worker's latest one.
type refusal struct {
	status  int
	body    []byte
	code    string
	outcome outcome
}

// readRefusal parses a refusal. It keeps no reference to resp.
func readRefusal(resp *fasthttp.Response) refusal {
	var answer struct {
		Error struct {
			Code string `json:"code"`
		} `json:"error"`
		Applied []json.RawMessage `json:"applied"`
		Unknown []json.RawMessage `json:"unknown"`
	}
	r := refusal{status: resp.StatusCode(), body: bytes.Clone(resp.Body()), outcome: unknown}
	if err := json.Unmarshal(r.body, &answer); err != nil || answer.Error.Code == "" {
		r.code = "status_" + strconv.Itoa(r.status)
		return r
	}
	r.code = answer.Error.Code
	// With a status of 4xx or 503, countd names each op that it applied or may have applied. So if
	// the answer names none, no op was applied.
	if (r.status/100 == 4 || r.status == http.StatusServiceUnavailable) && len(answer.Applied)+len(answer.Unknown) == 0 {
		r.outcome = refused
	}
	return r
}

// codeOfBroken returns the error code for a request without an answer.
func codeOfBroken(err error) string {
	var timeout net.Error
	if errors.Is(err, fasthttp.ErrTimeout) || errors.As(err, &timeout) && timeout.Timeout() {
		return "timeout"
	}
	return "no_answer"
}
