package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/countd/countd/internal/must"
)

const (
	incrPath = "/v1/counters/posts/incr"
	// settleMax is how long a request is repeated before the test fails. A node's start on a busy
	// machine takes seconds.
	settleMax     = must.BecomeMax
	shortDeadline = 4 * time.Millisecond // about the duration of a write
)

// request is one request, which may be sent several times.
type request struct {
	header http.Header // contains the key, or the producer and the number
	body   map[string]any
	ops    []op // ops that succeed
	brims  int  // number of additional ops that overflow
	oneID  bool

	mu struct {
		sync.Mutex
		sent     int  // how often it was sent
		answered bool // there was a complete answer
		fresh    int  // number of answers without duplicate set
	}
}

// answer has the fields of the answer to an increment that tests check.
type answer struct {
	Duplicate bool
	Failed    int
	Error     struct{ Code string }
}

// newRequest returns a request without a key or number. Its ops are ops, which succeed, and brims,
// which overflow, in random order.
func newRequest(ops []op, brims ...op) *request {
	all := append(append([]op{}, ops...), brims...)
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	r := &request{ops: ops, brims: len(brims), body: map[string]any{"ops": all}, oneID: true}
	for _, o := range all {
		r.oneID = r.oneID && o.ID == all[0].ID
	}
	if rand.IntN(2) == 0 {
		r.body["want"] = "none"
	}
	return r
}

// deliver sends a request until it is answered, and returns an error if that answer is
// wrong.
func (s *storm) deliver(r *request) error {
	for end := time.Now().Add(settleMax); time.Now().Before(end); {
		answeredBefore := r.sending()
		s.sent.Add(1)
		status, got, err := s.send(r)
		if err != nil {
			return fmt.Errorf("%v: %w", r.header, err)
		}
		switch status {
		case 0:
			s.cut.Add(1)
		case http.StatusTooManyRequests, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
			s.unknown.Add(1)
		default:
			s.note(status, got)
			if err := r.judge(status, got, answeredBefore); err != nil {
				return fmt.Errorf("%v, %v: status %d, %+v: %w", r.header, r.body, status, got, err)
			}
			return nil
		}
		select {
		case <-s.running.Done():
			return s.running.Err()
		case <-time.After(pollEvery):
		}
	}
	return fmt.Errorf("%v: not answered within %v", r.header, settleMax)
}

// send sends a request once. One request in four has a deadline that is possibly too short, and for
// one in sixteen the client hangs up. The status is 0 if no complete answer arrives.
func (s *storm) send(r *request) (int, answer, error) {
	header, ctx := maps.Clone(r.header), s.running
	switch rand.IntN(16) {
	case 0, 1, 2, 3:
		header.Set("Countd-Timeout", (time.Millisecond/2 + rand.N(shortDeadline)).String())
	case 4:
		var hangUp context.CancelFunc
		ctx, hangUp = context.WithTimeout(ctx, rand.N(shortDeadline))
		defer hangUp()
	}
	var got answer
	status, err := s.node.Send(ctx, http.MethodPost, incrPath, header, r.body, &got)
	var garbled *json.SyntaxError
	if errors.As(err, &garbled) {
		return 0, got, err
	}
	return status, got, nil
}

func (s *storm) note(status int, got answer) {
	s.answered.Add(1)
	switch {
	case status == http.StatusConflict:
		s.refused.Add(1)
	case got.Duplicate:
		s.duplicates.Add(1)
	}
}

// sending increments r.mu.sent. It reports whether the request has been answered already.
func (r *request) sending() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.sent++
	return r.mu.answered
}

// judge returns an error if an answer is wrong for the request and its earlier answers.
func (r *request) judge(status int, got answer, answeredBefore bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.answered = true
	if len(r.ops) == 0 {
		if status != http.StatusConflict || got.Error.Code != "overflow" {
			return errors.New("every op overflows, want 409 overflow")
		}
		return nil
	}
	if status != http.StatusOK {
		return errors.New("want 200")
	}
	if !got.Duplicate {
		r.mu.fresh++
	}
	switch {
	case got.Duplicate && r.mu.sent == 1:
		return errors.New("a duplicate, and it was sent once")
	case !got.Duplicate && answeredBefore:
		return errors.New("no duplicate, and it was sent after an answer")
	case !got.Duplicate && r.oneID && r.mu.fresh > 1:
		return errors.New("no duplicate, for the second time")
	case got.Failed > r.brims, r.mu.sent == 1 && got.Failed != r.brims:
		return fmt.Errorf("%d ops failed, want %d", got.Failed, r.brims)
	}
	return nil
}
