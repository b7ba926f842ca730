package api

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/countd/countd/internal/strictjson"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/feed"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/unread"
)

const (
	timeoutDefault = 5 * time.Second
	timeoutMax     = time.Minute
	// maxStalenessMax bounds max_staleness. A node that is further behind should count as down.
	maxStalenessMax = time.Hour
)

// readHead parses path, headers and parameters. It runs after the body has arrived, because an
// idempotency key covers a hash of the body.
func (r *request) readHead(ctx *fasthttp.RequestCtx, b Backend, to target, e *endpoint) error {
	r.backend, r.name, r.column, r.takes = b, to.keyspace, to.column, e.takes
	r.deadline = r.received.Add(r.timeout)
	r.read.Deadline, r.write.Deadline = r.deadline, r.deadline
	r.write.Permission = r
	if r.takes&takesKeyspace != 0 {
		if err := r.findKeyspace(); err != nil {
			return err
		}
	}
	if r.takes&takesColumn != 0 {
		if err := r.findColumn(); err != nil {
			return err
		}
	}
	if r.takes&takesUnread != 0 {
		if err := r.findUnread(); err != nil {
			return err
		}
	}
	if r.takes&takesName != 0 && !catalog.ValidName(r.name) {
		return invalid("name", unread.NameRule)
	}
	if r.takes&takesGroup != 0 && !feed.ValidGroupName(r.name) {
		return invalid("name", groupRule)
	}
	if r.takes&(takesID|takesNotice) != 0 {
		var ok bool
		if r.id, ok = strictjson.ParseUint64(to.id); !ok {
			return invalid(r.idName(), notUint64)
		}
	}
	if r.takes&takesAnything != 0 {
		return nil
	}
	if r.takes&takesStream != 0 {
		return r.readStreamHead(ctx)
	}
	if r.takes&takesWrite != 0 {
		if err := r.readIdentity(ctx, e); err != nil {
			return err
		}
	}
	if err := r.readParameters(ctx); err != nil {
		return err
	}
	return r.checkBody(ctx)
}

// errNoCluster is returned by a node that knows no keyspace yet. Every cluster has some.
var errNoCluster = fmt.Errorf("%w: this node does not know its cluster yet", shard.ErrNoLeader)

func (r *request) findKeyspace() (err error) {
	if r.keyspace, err = r.lookUp(string(r.name)); err != nil {
		return err
	}
	if r.keyspace == nil || r.keyspace.Kind != shard.KindCounters {
		message := shard.ErrUnknownKeyspace.Error()
		if r.keyspace != nil && r.takes&takesColumn != 0 {
			message = noMembersIn(r.keyspace)
		}
		return &fault{status: fasthttp.StatusNotFound, code: codeUnknownKeyspace, message: message}
	}
	return nil
}

// lookUp returns the keyspace with a name, or nil if there is none.
func (r *request) lookUp(name string) (*shard.Keyspace, error) {
	ks := r.backend.Keyspace(name)
	switch {
	case ks != nil || r.caughtUp:
		return ks, nil
	case len(r.backend.Keyspaces()) == 0:
		return nil, errNoCluster
	}
	err := r.catchUp()
	return r.backend.Keyspace(name), err
}

// catchUp brings this node's keyspaces and columns up to date, at most once per request. Another
// node may just have created and acknowledged a name that this node does not know.
func (r *request) catchUp() error {
	ctx, cancel := context.WithDeadline(context.Background(), r.deadline)
	defer cancel()
	err := r.backend.CatchUp(ctx)
	r.caughtUp = err == nil
	return err
}

// checkFraming refuses a request that a proxy in front of the server may have ended at another
// byte than the server does.
func checkFraming(ctx *fasthttp.RequestCtx) error {
	h := &ctx.Request.Header
	problem := ""
	switch p := h.Protocol(); {
	case string(p) != "HTTP/1.1" && string(p) != "HTTP/1.0":
		problem = "only HTTP/1.0 and 1.1 are spoken"
	case h.ContentLength() != 0 && hasHeader(h, fasthttp.HeaderTransferEncoding) && hasHeader(h, fasthttp.HeaderContentLength):
		problem = "it has both Content-Length and Transfer-Encoding"
	default:
		return nil
	}
	f := invalid("request", problem)
	f.closes = true
	return f
}

// hasHeader reports whether a header is present, including one that fasthttp does not keep.
func hasHeader(h *fasthttp.RequestHeader, name string) bool {
	for line := range bytes.Lines(h.RawHeaders()) {
		if len(line) > len(name) && line[len(name)] == ':' && bytes.EqualFold(line[:len(name)], []byte(name)) {
			return true
		}
	}
	return false
}

// header returns the value of a header that may occur only once. It returns nil for a missing
// header, and an empty slice for an empty one.
func header(h *fasthttp.RequestHeader, name string) ([]byte, error) {
	switch values := h.PeekAll(name); {
	case len(values) == 0:
		return nil, nil
	case len(values) > 1:
		return nil, invalid(name, givenTwice)
	case values[0] == nil:
		return []byte{}, nil
	default:
		return values[0], nil
	}
}

// timeoutOf reads Countd-Timeout, which bounds the time from the request's headers
// to its last byte, and from there to the answer.
func timeoutOf(h *fasthttp.RequestHeader) (time.Duration, error) {
	text, err := header(h, headerTimeout)
	if text == nil || err != nil {
		return timeoutDefault, err
	}
	timeout, ok := parseShortDuration(text)
	if !ok {
		timeout, err = time.ParseDuration(string(text))
	}
	if err != nil || timeout <= 0 || timeout > timeoutMax {
		return timeoutDefault, invalid(headerTimeout, "not a duration above 0 and up to 60s, such as 500ms")
	}
	return timeout, nil
}

// parseShortDuration parses the most common form, up to five digits of seconds or
// milliseconds, like time.ParseDuration, which allocates.
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

// readIdentity parses the headers that identify a write. A key is for one call with one body: its
// hash covers the endpoint, the names in the path and the meaning of the body, however the client
// spells them.
func (r *request) readIdentity(ctx *fasthttp.RequestCtx, e *endpoint) error {
	h := &ctx.Request.Header
	key, err := header(h, headerKey)
	if err != nil {
		return err
	}
	producer, err := header(h, headerProducer)
	if err != nil {
		return err
	}
	sequence, err := header(h, headerSequence)
	switch {
	case err != nil:
		return err
	case key != nil && (producer != nil || sequence != nil):
		return invalid(headerKey, "a write has a key or a producer, not both")
	case key != nil:
		if len(key) < 1 || len(key) > shard.KeyBytesMax {
			return invalid(headerKey, fmt.Sprintf("not 1 to %d bytes", shard.KeyBytesMax))
		}
		id, body := strconv.AppendUint(nil, r.id, 10), ctx.Request.Body()
		if r.takes&takesColumn != 0 {
			id = r.column
		}
		r.write.ID = shard.ByKey(key, e.hashed, r.name, id, binary.LittleEndian.AppendUint64(nil, r.meaningOf(body)))
	case producer != nil || sequence != nil:
		if len(producer) < 1 || len(producer) > shard.ProducerBytesMax {
			return invalid(headerProducer, fmt.Sprintf("not 1 to %d bytes", shard.ProducerBytesMax))
		}
		number, ok := strictjson.ParseUint64(sequence)
		if !ok {
			return invalid(headerSequence, notUint64)
		}
		r.write.ID = shard.ByProducer(producer, number)
	}
	return nil
}

// readParameters parses the query, and for a read its headers. A parameter of the query
// overrides the header of its name.
func (r *request) readParameters(ctx *fasthttp.RequestCtx) error {
	isRead := r.takes&takesRead != 0
	level, staleness := []byte(nil), []byte(nil)
	if isRead {
		var err error
		if level, staleness, err = r.readReadHeaders(&ctx.Request.Header); err != nil {
			return err
		}
	}
	if len(ctx.URI().QueryString()) > 0 {
		var s seen
		for name, value := range ctx.QueryArgs().All() {
			switch {
			case isRead && string(name) == consistency && !s.has(0):
				s |= 1
				level = value
			case isRead && string(name) == maxStaleness && !s.has(1):
				s |= 2
				staleness = value
			case isRead && (string(name) == consistency || string(name) == maxStaleness):
				return invalid(string(name), givenTwice)
			default:
				if err := r.readParameter(name, value, &s); err != nil {
					return err
				}
			}
		}
	}
	return r.readFreshness(level, staleness)
}

// readReadHeaders parses the token, and returns the headers that the query overrides.
func (r *request) readReadHeaders(h *fasthttp.RequestHeader) (level, staleness []byte, err error) {
	if level, err = eitherHeader(h, headerConsistency, consistency); err != nil {
		return nil, nil, err
	}
	if staleness, err = eitherHeader(h, headerMaxStaleness, maxStaleness); err != nil {
		return nil, nil, err
	}
	text, err := header(h, headerToken)
	if text != nil && err == nil {
		if r.read.Token, err = shard.ParseToken(text); err != nil {
			err = invalid(headerToken, shard.ErrBadToken.Error())
		}
	}
	return level, staleness, err
}

// eitherHeader returns a header that has two names, because proxies drop a name with an
// underscore.
func eitherHeader(h *fasthttp.RequestHeader, name, other string) ([]byte, error) {
	value, err := header(h, name)
	if err != nil {
		return nil, err
	}
	old, err := header(h, other)
	switch {
	case err != nil || value == nil:
		return old, err
	case old != nil:
		return nil, invalid(name, "given as "+other+" too")
	}
	return value, nil
}

// readFreshness parses how fresh a read must be. nil stands for a missing value. Only a bounded
// read uses max_staleness, because a client may set the parameter for all its reads.
func (r *request) readFreshness(level, staleness []byte) error {
	r.namesLevel = level != nil
	switch {
	case level == nil || string(level) == "bounded":
		r.read.Consistency = shard.Bounded
	case string(level) == "stale":
		r.read.Consistency = shard.Stale
	case string(level) == "linearizable":
		r.read.Consistency = shard.Linearizable
	default:
		return invalid(consistency, "not one of stale, bounded and linearizable")
	}
	if staleness == nil {
		return nil
	}
	d, err := time.ParseDuration(string(staleness))
	if err != nil || d <= 0 || d > maxStalenessMax {
		return invalid(maxStaleness, "not a duration above 0 and up to 1h, such as 500ms")
	}
	if r.read.Consistency == shard.Bounded {
		r.read.MaxStaleness = d
	}
	return nil
}

// checkBody refuses an unexpected body and a body with a content coding. It also refuses a write
// that a page of another site can make a browser send without a preflight request: such a request
// has an Origin and is not JSON.
func (r *request) checkBody(ctx *fasthttp.RequestCtx) error {
	if r.takes&takesBody == 0 {
		if len(ctx.Request.Body()) > 0 {
			return invalid("body", "this call takes none")
		}
		return nil
	}
	coding := ctx.Request.Header.Peek(fasthttp.HeaderContentEncoding)
	if len(coding) > 0 && !bytes.EqualFold(coding, []byte("identity")) {
		return invalid(fasthttp.HeaderContentEncoding, "only identity is understood")
	}
	h := &ctx.Request.Header
	if r.takes&(takesWrite|takesChange) != 0 && len(h.Peek(fasthttp.HeaderOrigin)) > 0 && !isJSON(h.ContentType()) {
		return invalid(fasthttp.HeaderContentType, "with an Origin it must be application/json")
	}
	return nil
}

// isJSON reports whether a media type stands for JSON.
func isJSON(typ []byte) bool {
	typ, _, _ = bytes.Cut(typ, []byte(";"))
	typ = bytes.ToLower(bytes.TrimSpace(typ))
	kind, sub, _ := bytes.Cut(typ, []byte("/"))
	return string(typ) == contentTypeJSON || string(kind) == "application" && bytes.HasSuffix(sub, []byte("+json"))
}

// readStreamHead reads the headers of a stream, and force and columns of the query. It
// requires the content type of a stream, so that no page of another site can make a browser
// send one.
func (r *request) readStreamHead(ctx *fasthttp.RequestCtx) error {
	typ, _, _ := strings.Cut(string(ctx.Request.Header.ContentType()), ";")
	if !strings.EqualFold(strings.TrimSpace(typ), contentTypeStream) {
		return invalid(fasthttp.HeaderContentType, "only "+contentTypeStream+" is understood")
	}
	for name, value := range ctx.QueryArgs().All() {
		switch {
		case string(name) == parameterColumns: // the backend checks the names
		case string(name) != parameterForce:
			return invalid(shown(name), "no such parameter of the query")
		case string(value) != "true" && string(value) != "false":
			return invalid(parameterForce, notBool)
		}
	}
	return nil
}

// The headers of a snapshot, and its content type.
const (
	headerIndex  = "Countd-Index"
	headerRows   = "Countd-Rows"
	headerDigest = "Countd-Digest"

	contentTypeStream = "application/octet-stream"
	parameterForce    = "force"
	parameterColumns  = "columns"
)
