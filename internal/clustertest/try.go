package clustertest

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
	// tryTimeout is what a try gives a node before another is asked. It is more
	// than an election takes.
	tryTimeout = 2 * time.Second
	// tryGrace is how long past its deadline an answer is waited for.
	tryGrace = 500 * time.Millisecond
	// tryPause is the wait after a try that failed, so that nodes are not asked in
	// a tight loop.
	tryPause = 10 * time.Millisecond
)

// Fate is what is known of a request after one try.
type Fate int

const (
	// Done says that it was answered 200.
	Done Fate = iota
	// Refused says that it changed nothing.
	Refused
	// Unknown says that it may have been carried out, or may be yet.
	Unknown
	// Wrong says that it got an answer that no good request may get.
	Wrong
)

// Try is what came of one try.
type Try struct {
	Fate Fate
	Why  string // in a word or two, unless Done
	Sent time.Time
	Took time.Duration
}

// answer is what the API answers a write or a read, as far as the package looks.
type answer struct {
	Results   []row
	ID        string
	Counts    map[string]int64
	Duplicate bool
	Token     string
	Applied   any // ids of a write in part, or how many ops
	Unknown   []string
	Error     struct{ Code, Message string }
}

type row struct {
	ID     string
	Counts map[string]int64
}

// request is one call of the API.
type request struct {
	method, path string
	header       http.Header
	body         any
}

// Send tries a request once, at one node, with that deadline.
func (n *Node) try(ctx context.Context, r *request, timeout time.Duration, into *answer) Try {
	header := r.header.Clone()
	if header == nil {
		header = http.Header{}
	}
	header.Set("Countd-Timeout", timeout.Round(time.Millisecond).String())
	limited, cancel := context.WithTimeout(ctx, timeout+tryGrace)
	defer cancel()
	t := Try{Sent: time.Now()}
	status, err := n.Send(limited, r.method, r.path, header, r.body, into)
	t.Took = time.Since(t.Sent)
	t.Fate, t.Why = fateOf(status, err, into)
	return t
}

// fateOf judges a try by its answer.
func fateOf(status int, err error, a *answer) (Fate, string) {
	var dial *net.OpError
	switch {
	case err != nil && errors.As(err, &dial) && dial.Op == "dial":
		return Refused, "no connection"
	case err != nil && errors.Is(err, context.DeadlineExceeded):
		return Unknown, "no answer in time"
	case err != nil:
		return Unknown, "connection lost"
	case status == http.StatusOK:
		return Done, ""
	}
	why := fmt.Sprintf("%d %s", status, a.Error.Code)
	applied, _ := a.Applied.([]any)
	switch status {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		if len(applied)+len(a.Unknown) > 0 {
			return Unknown, why
		}
		return Refused, why
	case http.StatusGatewayTimeout:
		return Unknown, why
	}
	return Wrong, why + ": " + a.Error.Message
}

// after returns the node that comes after one in a round over all.
func after(nodes []*Node, n *Node) *Node {
	return nodes[(slices.Index(nodes, n)+1)%len(nodes)]
}
