package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"time"

	"github.com/countd/countd/client/column"
)

const (
	// answerGrace is the time for which a try waits after its deadline for the server to report the
	// outcome of the request.
	answerGrace = time.Second
	// answerBytesMax bounds one answer. A page of 10,000 rows of 64 columns with the longest
	// names and counts stays below it.
	answerBytesMax = 64 << 20
	// timeoutMin is the shortest deadline worth sending.
	timeoutMin = time.Millisecond
)

// Call is one request to the API. The client may send it several times.
//
// Call, Ask, AskMember and Stream exist for package client/admin, so that both packages share
// addresses, TLS, tokens and retries. A service calls the methods of Client instead.
type Call struct {
	Method  string
	Path    string        // escaped, with its query
	Body    []byte        // JSON; nil sends none
	Request any           // if not nil, encoded into Body
	Write   bool          // the caller must know whether the call took effect: a lost answer is ErrUnknown
	Once    bool          // must not be sent twice
	Options *WriteOptions // options of a write with a key or number; these also set Write and Once; nil for other calls
	token   string        // token of a write that a read must see; "" for none
	header  http.Header
}

// Ask makes the call and returns the answer: decoded JSON, or the bytes of any answer if T is
// []byte.
func Ask[T any](ctx context.Context, c *Client, req Call) (T, error) {
	var answer T
	err := c.do(ctx, c.retry, req, &answer)
	return answer, err
}

// AskMember makes the call and returns one member of the answer's object, or the zero value if the
// answer has no such member.
func AskMember[T any](ctx context.Context, c *Client, req Call, name string) (T, error) {
	// Decoding into a struct with this one member takes one pass over the answer, and c.do reports
	// the errors.
	only := reflect.StructField{Name: "Member", Type: reflect.TypeFor[T](), Tag: reflect.StructTag(fmt.Sprintf("json:%q", name))}
	answer := reflect.New(reflect.StructOf([]reflect.StructField{only}))
	err := c.do(ctx, c.retry, req, answer.Interface())
	return answer.Elem().Field(0).Interface().(T), err
}

func (c *Client) do(ctx context.Context, retry Retry, req Call, out any) error {
	if req.Request != nil {
		body, err := json.Marshal(req.Request)
		if err != nil {
			return err
		}
		req.Body = body
	}
	if o := req.Options; o != nil {
		header, err := o.header()
		if err != nil {
			return err
		}
		req.header, req.Write, req.Once = header, true, o.Unkeyed || o.Once
	}
	if req.Once {
		retry.For = RetryNever
	}
	written := false // an earlier try may have written
	err := retry.Do(ctx, func() error { return c.round(ctx, req, out, &written) })
	if err != nil && written && !AllRefused(err) {
		return fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	return err
}

// AllRefused reports whether the server refused every op of a write for its values, such as sums that
// do not fit. The server remembers the refusal under the write's key or number. So the refusal also
// holds for earlier tries, answered or not.
func AllRefused(err error) bool {
	var refused *Error
	return errors.As(err, &refused) && column.IsRefusal(refused.Code)
}

// round tries the address in use. If the server there fails, round tries each of the other
// addresses, unless the call may be sent only once. round sets *written if a try of a write has an
// unknown outcome, and never clears it.
func (c *Client) round(ctx context.Context, req Call, out any, written *bool) error {
	for tries := 1; ; tries++ {
		current := c.current.Load()
		err := c.try(ctx, c.base(current), req, out)
		if err == nil {
			return nil
		}
		*written = *written || req.Write && !didNothing(err)
		if !elsewhere(err) {
			return err
		}
		// If several concurrent calls fail at this address, only the first of them switches to
		// the next one.
		c.current.CompareAndSwap(current, current+1)
		if tries >= len(c.bases) || req.Once || ctx.Err() != nil {
			return err
		}
	}
}

func (c *Client) try(ctx context.Context, base string, req Call, out any) error {
	status, body, header, err := c.send(ctx, base, req)
	if err != nil {
		return err
	}
	if status/100 != 2 {
		return decodeError(status, header, body)
	}
	if raw, ok := out.(*[]byte); ok {
		*raw = body
		return nil
	}
	if err := json.Unmarshal(body, out); err != nil {
		return fmt.Errorf("cannot read the answer of %s %s: %w", req.Method, base+req.Path, err)
	}
	return nil
}

// send makes the round trip and reads the whole answer.
func (c *Client) send(ctx context.Context, base string, req Call) (status int, body []byte, header http.Header, err error) {
	if ctx.Err() != nil {
		return 0, nil, nil, unsentError{ctx.Err()}
	}
	timeout := c.tryTimeout(ctx)
	limited, cancel := context.WithTimeout(ctx, timeout+answerGrace)
	defer cancel()
	r, err := http.NewRequestWithContext(limited, req.Method, base+req.Path, bytes.NewReader(req.Body))
	if err != nil {
		return 0, nil, nil, unsentError{fmt.Errorf("cannot make a request: %w", err)}
	}
	for name, values := range req.header {
		r.Header[name] = values
	}
	r.Header.Set("Countd-Timeout", timeout.String())
	if req.Body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	if req.token != "" {
		r.Header.Set("Countd-Token", req.token)
	}
	resp, err := c.http.Do(r)
	if err != nil {
		return 0, nil, nil, noAnswer(ctx, base, err)
	}
	defer resp.Body.Close()
	body, err = io.ReadAll(io.LimitReader(resp.Body, answerBytesMax+1))
	if err != nil {
		return 0, nil, nil, noAnswer(ctx, base, err)
	}
	if len(body) > answerBytesMax {
		return 0, nil, nil, fmt.Errorf("cannot read the answer of %s: it is larger than %d bytes", base+req.Path, answerBytesMax)
	}
	return resp.StatusCode, body, resp.Header, nil
}

// Stream sends a request to c.Addr() once. If the status is 2xx, the caller reads and closes the
// body. Only the context of the request limits its time.
func Stream(c *Client, r *http.Request) (*http.Response, error) {
	resp, err := c.http.Do(r)
	if err != nil {
		return nil, noAnswer(r.Context(), c.Addr(), err)
	}
	if resp.StatusCode/100 == 2 {
		return resp, nil
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, answerBytesMax))
	if err != nil {
		return nil, noAnswer(r.Context(), c.Addr(), err)
	}
	return nil, decodeError(resp.StatusCode, resp.Header, body)
}

// tryTimeout returns the server's deadline for one try: the client's timeout or, if that is
// shorter, the rest of ctx minus some time for the answer to travel.
func (c *Client) tryTimeout(ctx context.Context) time.Duration {
	deadline, has := ctx.Deadline()
	if !has {
		return c.timeout
	}
	left := time.Until(deadline)
	left -= min(left/10, 100*time.Millisecond)
	return max(min(c.timeout, left), timeoutMin).Round(timeoutMin)
}

// noAnswer returns the error of a try without an answer: the error of ctx if ctx has ended, and
// otherwise an error that wraps ErrNoAnswer and err.
func noAnswer(ctx context.Context, base string, err error) error {
	var dial *net.OpError
	unsent := errors.As(err, &dial) && dial.Op == "dial"
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		err = wrapped.Err // the text of the url.Error repeats the address
	}
	if ctx.Err() != nil {
		err = ctx.Err()
	} else {
		err = fmt.Errorf("%w from %s: %w", ErrNoAnswer, base, err)
	}
	if unsent {
		return unsentError{err}
	}
	return err
}

// unsentError marks a failure before the first byte of a request was sent.
type unsentError struct{ error }

func (e unsentError) Unwrap() error { return e.error }

// didNothing reports whether a try that failed with err certainly wrote nothing.
func didNothing(err error) bool {
	var unsent unsentError
	if errors.As(err, &unsent) {
		return true
	}
	var refused *Error
	if !errors.As(err, &refused) || len(refused.Applied)+len(refused.Unknown) > 0 {
		return false
	}
	switch refused.Status {
	case http.StatusRequestTimeout, http.StatusServiceUnavailable:
		return refused.Code != "" // a code shows that the answer is from countd, not from a proxy
	}
	return refused.Status/100 == 4
}

// readAt reads a path. The request has the options of o and the values of query.
func readAt[T any](ctx context.Context, c *Client, path string, query url.Values, o ReadOptions) (T, error) {
	return Ask[T](ctx, c, o.get(path, query))
}

// get returns the call that reads a path with the options of o and the values of query.
func (o ReadOptions) get(path string, query url.Values) Call {
	suffix := o.query()
	if len(query) > 0 {
		suffix = "?" + query.Encode() + strings.Replace(suffix, "?", "&", 1)
	}
	return Call{Method: http.MethodGet, Path: path + suffix, token: o.Token}
}

// post returns the call that reads a path, with request as its body.
func (o ReadOptions) post(path string, request any) Call {
	return Call{Method: http.MethodPost, Path: path + o.query(), token: o.Token, Request: request}
}

// writeAt sends a write to a path. A nil request sends no body.
func writeAt[T any](ctx context.Context, c *Client, method, path string, request any, o WriteOptions) (T, error) {
	return Ask[T](ctx, c, Call{Method: method, Path: path, Request: request, Options: &o})
}
