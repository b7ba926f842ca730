package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// ErrNoAnswer is returned if the server did not answer: the connection was refused or broke, or
// the deadline passed.
var ErrNoAnswer = errors.New("no answer")

// ErrUnknown means that a write may or may not have happened, because a try got no answer. The
// returned error also wraps the error of the last try. The write still counts once if the caller
// repeats it with the same key or number.
var ErrUnknown = errors.New("it is not known whether the write happened")

// Error is an answer in which the server refused a request.
type Error struct {
	Status     int           // HTTP status
	Code       string        // such as invalid_argument; "" if the body was not an error of countd
	Message    string        // one line
	Field      string        // path of the wrong field in the body, such as ops[3].id; "" for none
	RetryAfter time.Duration // the server's Retry-After; 0 for none
	Applied    []ID          // ids that were applied, for a write over several shards
	Unknown    []ID          // ids whose outcome is unknown, for a write over several shards
	// AppliedOps and UnknownOps name the same ops by their number in the request, because an id
	// may occur in several keyspaces.
	AppliedOps, UnknownOps []int
}

func (e *Error) Error() string {
	code := e.Code
	if code == "" {
		code = http.StatusText(e.Status)
	}
	text := fmt.Sprintf("%s (%d): %s", code, e.Status, e.Message)
	if len(e.Applied)+len(e.Unknown) > 0 {
		text += fmt.Sprintf(" (%d ops applied, %d unknown)", len(e.Applied), len(e.Unknown))
	}
	return text
}

// Retryable reports whether the same call may succeed later: the server, or a proxy, was busy or
// did not answer. It does not mean that a write may be repeated: without a key, the first try may
// have counted.
func Retryable(err error) bool {
	if errors.Is(err, context.Canceled) {
		return false
	}
	var refused *Error
	if errors.As(err, &refused) {
		switch refused.Status {
		case http.StatusRequestTimeout, http.StatusTooManyRequests,
			http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
			return true
		}
		return false
	}
	return errors.Is(err, ErrNoAnswer)
}

// needsTLS reports whether a request without TLS reached a port with TLS. countd, like Go's
// net/http, answers such a request with this status and text.
func (e *Error) needsTLS() bool {
	return e.Status == http.StatusBadRequest && e.Code == "" && strings.HasPrefix(e.Message, "Client sent an HTTP request to an HTTPS server")
}

// errorMessageBytesMax bounds the text kept of an answer that did not come from countd.
const errorMessageBytesMax = 200

// decodeError parses the body of an answer whose status is not 2xx. If the body came from another
// server, such as a proxy, the shortened body becomes the message.
func decodeError(status int, header http.Header, body []byte) *Error {
	e := &Error{Status: status, RetryAfter: retryAfter(header, time.Now())}
	var answer struct {
		Error struct {
			Code    string `json:"code"`
			Message string `json:"message"`
			Field   string `json:"field"`
		} `json:"error"`
		Applied []ID `json:"applied"`
		Unknown []ID `json:"unknown"`

		AppliedOps []int `json:"applied_ops"`
		UnknownOps []int `json:"unknown_ops"`
	}
	if err := json.Unmarshal(body, &answer); err == nil && answer.Error.Code != "" {
		e.Code, e.Message, e.Field = answer.Error.Code, oneLine(answer.Error.Message), answer.Error.Field
		e.Applied, e.Unknown = answer.Applied, answer.Unknown
		e.AppliedOps, e.UnknownOps = answer.AppliedOps, answer.UnknownOps
		return e
	}
	e.Message = oneLine(string(body))
	if e.Message == "" {
		e.Message = "the answer has no text"
	}
	return e
}

// oneLine returns a text as one short line, because an error must be one line.
func oneLine(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > errorMessageBytesMax {
		text = strings.ToValidUTF8(text[:errorMessageBytesMax], "") + "…"
	}
	return text
}

// retryAfter reads the header Retry-After, in seconds or as a date.
func retryAfter(header http.Header, now time.Time) time.Duration {
	value := header.Get("Retry-After")
	if seconds, err := strconv.ParseUint(value, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second
	}
	if at, err := http.ParseTime(value); err == nil && at.After(now) {
		return at.Sub(now)
	}
	return 0
}

// Op returns the index of the op that caused the error, if one did.
func (e *Error) Op() (index int, ok bool) {
	index, _, ok = cutOp(e.Field)
	return index, ok
}

// columnOf reads the column out of a path such as ops[3].add.like.
func columnOf(field string) (string, bool) {
	_, rest, ok := cutOp(field)
	column, isAdd := strings.CutPrefix(rest, ".add.")
	return column, ok && isAdd
}

// cutOp splits ops[3].id into 3 and .id.
func cutOp(field string) (op int, rest string, ok bool) {
	field, isOp := strings.CutPrefix(field, "ops[")
	index, rest, closed := strings.Cut(field, "]")
	op, err := strconv.Atoi(index)
	return op, rest, isOp && closed && err == nil && op >= 0
}
