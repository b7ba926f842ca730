package gate

import (
	"bytes"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/countd/countd/internal/strictjson"
)

// FramingProblem returns the problem of a request whose end a proxy in front of the server may
// determine differently, or "".
func FramingProblem(h *fasthttp.RequestHeader) string {
	switch p := h.Protocol(); {
	case string(p) != "HTTP/1.1" && string(p) != "HTTP/1.0":
		return "only HTTP/1.0 and 1.1 are spoken"
	case h.ContentLength() != 0 && hasHeader(h, fasthttp.HeaderTransferEncoding) && hasHeader(h, fasthttp.HeaderContentLength):
		return "it has both Content-Length and Transfer-Encoding"
	}
	return ""
}

// hasHeader reports whether a header is present, even a header that fasthttp does not keep.
func hasHeader(h *fasthttp.RequestHeader, name string) bool {
	for line := range bytes.Lines(h.RawHeaders()) {
		if len(line) > len(name) && line[len(name)] == ':' && bytes.EqualFold(line[:len(name)], []byte(name)) {
			return true
		}
	}
	return false
}

// Header returns the value of a header that may occur only once. It returns nil if the header is
// missing, and an empty slice if the value is empty.
func Header(h *fasthttp.RequestHeader, name string) ([]byte, error) {
	switch values := h.PeekAll(name); {
	case len(values) == 0:
		return nil, nil
	case len(values) > 1:
		return nil, badHeader(name, strictjson.GivenTwice)
	case values[0] == nil:
		return []byte{}, nil
	default:
		return values[0], nil
	}
}

// EitherHeader returns a header that has two names, because proxies drop headers with an
// underscore.
func EitherHeader(h *fasthttp.RequestHeader, name, other string) ([]byte, error) {
	value, err := Header(h, name)
	if err != nil {
		return nil, err
	}
	old, err := Header(h, other)
	switch {
	case err != nil || value == nil:
		return old, err
	case old != nil:
		return nil, badHeader(name, "given as "+other+" too")
	}
	return value, nil
}

func badHeader(name, problem string) error {
	return &strictjson.FieldError{Path: name, Problem: problem}
}

// TimeoutOf parses Countd-Timeout. The header bounds the time from the request's headers to its
// last byte, and then the time to the answer.
func TimeoutOf(h *fasthttp.RequestHeader) (time.Duration, error) {
	text, err := Header(h, HeaderTimeout)
	if text == nil || err != nil {
		return timeoutDefault, err
	}
	timeout, ok := parseShortDuration(text)
	if !ok {
		timeout, err = time.ParseDuration(string(text))
	}
	if err != nil || timeout <= 0 || timeout > timeoutMax {
		return timeoutDefault, badHeader(HeaderTimeout, "not a duration above 0 and up to 60s, such as 500ms")
	}
	return timeout, nil
}

// parseShortDuration parses the most common form, up to five digits of seconds or milliseconds.
// Unlike time.ParseDuration, it does not allocate.
func parseShortDuration(text []byte) (time.Duration, bool) {
	const digitsMax = 5
	n, at := 0, 0
	for ; at < len(text) && at < digitsMax && text[at] >= '0' && text[at] <= '9'; at++ {
		n = 10*n + int(text[at]-'0')
	}
	switch unit := text[at:]; {
	case at > 0 && string(unit) == "s":
		return time.Duration(n) * time.Second, true
	case at > 0 && string(unit) == "ms":
		return time.Duration(n) * time.Millisecond, true
	}
	return 0, false
}

// IsJSON reports whether a media type is JSON.
func IsJSON(typ []byte) bool {
	typ, _, _ = bytes.Cut(typ, []byte(";"))
	typ = bytes.ToLower(bytes.TrimSpace(typ))
	kind, sub, _ := bytes.Cut(typ, []byte("/"))
	return string(typ) == ContentTypeJSON || string(kind) == "application" && bytes.HasSuffix(sub, []byte("+json"))
}

const (
	timeoutDefault = 5 * time.Second
	timeoutMax     = time.Minute
)

const (
	HeaderTimeout   = "Countd-Timeout"
	ContentTypeJSON = "application/json"
)
