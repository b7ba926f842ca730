package api

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/countd/countd/api/gate"
	"github.com/countd/countd/api/operate"
	"github.com/countd/countd/inbox"
	"github.com/countd/countd/internal/strictjson"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/feed"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/shard/errs"
)

// readHead parses the path, the headers and the parameters of a request. It runs after the body has
// arrived, because the identity of a write contains a hash of the body.
func (r *request) readHead(ctx *fasthttp.RequestCtx, b Backend, to target, e *endpoint) error {
	r.backend, r.name, r.column, r.takes, r.query = b, to.keyspace, to.column, e.takes, e.query
	r.deadline = r.received.Add(r.timeout)
	r.read.Deadline, r.write.Deadline = r.deadline, r.deadline
	r.write.Permission = &r.identity
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
		return invalid("name", inbox.NameRule)
	}
	if r.takes&takesGroup != 0 && !feed.ValidGroupName(r.name) {
		return invalid("name", inbox.GroupRule)
	}
	r.texts.Seeks = r.takes&removes != 0
	if r.takes&(takesID|takesNotice) != 0 {
		var problem string
		r.id, problem = r.texts.Parse(pathSpace(r), pathSlot, to.id)
		switch {
		case problem == "":
		case to.action != nil:
			return notAllowed(ctx.Method(), to.action)
		case r.takes&takesNotice != 0:
			return invalid("seq", strictjson.NotUint64)
		default:
			return invalid(r.idName(), problem)
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

// readIdentity parses the headers that identify a write. A key belongs to one endpoint, path and
// body. The identity contains a hash of all three. The hash depends on the meaning of the body, not
// on its spelling.
func (r *request) readIdentity(ctx *fasthttp.RequestCtx, e *endpoint) error {
	h := &ctx.Request.Header
	key, err := gate.Header(h, headerKey)
	if err != nil {
		return err
	}
	producer, err := gate.Header(h, headerProducer)
	if err != nil {
		return err
	}
	sequence, err := gate.Header(h, headerSequence)
	switch {
	case err != nil:
		return err
	case key != nil && (producer != nil || sequence != nil):
		return invalid(headerKey, "a write has a key or a producer, not both")
	case key != nil:
		if len(key) < 1 || len(key) > dedup.KeyBytesMax {
			return invalid(headerKey, fmt.Sprintf("not 1 to %d bytes", dedup.KeyBytesMax))
		}
		id, body := strconv.AppendUint(nil, r.id, 10), ctx.Request.Body()
		if text := r.texts.Text(pathSlot); text != nil {
			id = text
		}
		if r.takes&takesColumn != 0 {
			id = r.column
		}
		r.write.ID = dedup.ByKey(key, e.hashed, r.name, id, binary.LittleEndian.AppendUint64(nil, r.cursor.Meaning(body)))
	case producer != nil || sequence != nil:
		if len(producer) < 1 || len(producer) > dedup.ProducerBytesMax {
			return invalid(headerProducer, fmt.Sprintf("not 1 to %d bytes", dedup.ProducerBytesMax))
		}
		number, ok := strictjson.ParseUint64(sequence)
		if !ok {
			return invalid(headerSequence, strictjson.NotUint64)
		}
		r.write.ID = dedup.ByProducer(producer, number)
	}
	return nil
}

// readParameters parses the query, and for a read its headers. A query parameter overrides the
// header with the same name.
func (r *request) readParameters(ctx *fasthttp.RequestCtx) error {
	if r.takes&takesRead != 0 {
		if err := r.readReadHeaders(&ctx.Request.Header); err != nil {
			return err
		}
	}
	if len(ctx.URI().QueryString()) > 0 {
		var s seen
		for name, value := range ctx.QueryArgs().All() {
			if err := r.readParameter(name, value, &s); err != nil {
				return err
			}
		}
	}
	return r.readFreshness()
}

// readReadHeaders parses the token, and the headers that the query may override.
func (r *request) readReadHeaders(h *fasthttp.RequestHeader) (err error) {
	if r.asked.level, err = gate.EitherHeader(h, headerConsistency, consistency); err != nil {
		return err
	}
	if r.asked.staleness, err = gate.EitherHeader(h, headerMaxStaleness, maxStaleness); err != nil {
		return err
	}
	text, err := gate.Header(h, headerToken)
	if text != nil && err == nil {
		if r.read.Token, err = shard.ParseToken(text); err != nil {
			err = invalid(headerToken, errs.ErrBadToken.Error())
		}
	}
	return err
}

// readFreshness parses the level and the staleness of a read. A read that is not bounded ignores the
// staleness, because a client may send it with all its reads.
func (r *request) readFreshness() error {
	level, staleness := r.asked.level, r.asked.staleness
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

// checkBody refuses an unexpected body, and a body with a content coding. If a write has an Origin,
// its body must be JSON: a page of another site can make a browser send any other body without a
// preflight request.
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
	if r.takes&(takesWrite|takesChange) != 0 && len(h.Peek(fasthttp.HeaderOrigin)) > 0 && !gate.IsJSON(h.ContentType()) {
		return invalid(fasthttp.HeaderContentType, "with an Origin it must be application/json")
	}
	return nil
}

// readStreamHead checks the headers and the query of a stream. It
// requires the content type of a stream, so that a page of another site cannot make a browser send
// a stream.
func (r *request) readStreamHead(ctx *fasthttp.RequestCtx) error {
	typ, _, _ := strings.Cut(string(ctx.Request.Header.ContentType()), ";")
	if !strings.EqualFold(strings.TrimSpace(typ), contentTypeStream) {
		return invalid(fasthttp.HeaderContentType, "only "+contentTypeStream+" is understood")
	}
	_, err := operate.RestoreOptions(ctx.QueryArgs().All())
	return err
}

// The headers of a snapshot, and its content type.
const (
	headerIndex   = "Countd-Index"
	headerRows    = "Countd-Rows"
	headerDigest  = "Countd-Digest"
	headerModulus = "Countd-Modulus"

	contentTypeStream = "application/octet-stream"
)

// readParameter parses a query parameter that only some calls accept. s has a bit for each of r.query.
func (r *request) readParameter(name, value []byte, s *seen) error {
	for i := range r.query {
		p := &r.query[i]
		if string(name) != p.name {
			continue
		}
		if s.has(i) {
			return invalid(p.name, strictjson.GivenTwice)
		}
		*s |= 1 << i
		return p.read(r, value)
	}
	return invalid(operate.Shown(name), "no such parameter of the query")
}
