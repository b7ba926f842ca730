package proctest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"time"
)

const (
	// tryTimeout is the deadline of a try, after which the client tries the next node. It is longer
	// than an election.
	tryTimeout = 2 * time.Second
	// tryGrace is how long the client still waits for an answer after the deadline of a try.
	tryGrace = 500 * time.Millisecond
	// tryPause is the wait after a failed try, which avoids a busy loop.
	tryPause = 10 * time.Millisecond
)

// fate is the outcome of one try.
type fate int

const (
	done    fate = iota // answered 200
	refused             // the request changed nothing
	unknown             // the request may have been applied, or may be applied later
	wrong               // the answer is one that the API must never send for a valid request
)

type outcome struct {
	fate fate
	why  string // the reason in a few words; "" if the fate is done
	took time.Duration
}

// answer has the fields of the API's answers that the package uses.
type answer struct {
	Results   []row
	ID        string
	Counts    map[string]int64
	Duplicate bool
	Token     string
	Applied   any // a list of the applied ids in an error, or the number of applied ops
	Unknown   []string
	Error     struct{ Code, Message string }
}

type row struct {
	ID     string
	Counts map[string]int64
}

type request struct {
	method, path string
	header       http.Header
	body         any
}

// try sends a request once, to one node, with timeout as its deadline.
func (n *Member) try(ctx context.Context, r *request, timeout time.Duration, into *answer) outcome {
	header := r.header.Clone()
	if header == nil {
		header = http.Header{}
	}
	header.Set("Countd-Timeout", timeout.Round(time.Millisecond).String())
	limited, cancel := context.WithTimeout(ctx, timeout+tryGrace)
	defer cancel()
	sent := time.Now()
	status, err := n.Send(limited, r.method, r.path, header, r.body, into)
	o := outcome{took: time.Since(sent)}
	o.fate, o.why = fateOf(status, err, into)
	return o
}

// fateOf returns the fate of a try from its answer, and the reason.
func fateOf(status int, err error, a *answer) (fate, string) {
	var dial *net.OpError
	switch {
	case err != nil && errors.As(err, &dial) && dial.Op == "dial":
		return refused, "no connection"
	case err != nil && errors.Is(err, context.DeadlineExceeded):
		return unknown, "no answer in time"
	case err != nil:
		return unknown, "connection lost"
	case status == http.StatusOK:
		return done, ""
	}
	why := fmt.Sprintf("%d %s", status, a.Error.Code)
	applied, _ := a.Applied.([]any)
	switch status {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		if len(applied)+len(a.Unknown) > 0 {
			return unknown, why
		}
		return refused, why
	case http.StatusGatewayTimeout:
		return unknown, why
	}
	return wrong, why + ": " + a.Error.Message
}

// after returns the node that follows n in nodes. The first node follows the last.
func after(nodes []*Member, n *Member) *Member {
	return nodes[(slices.Index(nodes, n)+1)%len(nodes)]
}
