package api

import (
	"bytes"
	"fmt"
	"sync"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/shard"
)

const (
	timeoutDefault = 5 * time.Second
	timeoutMax     = time.Minute
	// maxStalenessMax bounds how old an answer a client can find good enough: a
	// node that is this far behind should be seen as down.
	maxStalenessMax = time.Hour
)

// The headers and parameters of the contract.
const (
	headerTimeout  = "Countd-Timeout"
	headerToken    = "Countd-Token"
	consistency    = "consistency"   // header or query
	maxStaleness   = "max_staleness" // header or query
	headerKey      = "Idempotency-Key"
	headerProducer = "Countd-Producer"
	headerSequence = "Countd-Seq"
)

// request is what one call under way knows and the buffers that it needs. It is
// pooled: from acquire to release it belongs to one handler, and nothing of it
// is left with the backend, which promises that.
type request struct {
	keyspace *shard.Keyspace // when the endpoint takes one
	name     []byte          // {keyspace} of the path
	id       uint64          // when the endpoint takes one
	received time.Time       // when the request's last byte came
	timeout  time.Duration   // of received to the deadline
	deadline time.Time
	read     shard.ReadOptions
	write    shard.Write
	wantNone bool

	body     []byte // as it came; the cursor reads it
	held     int    // bytes of the server's room for bodies that it takes
	cursor   cursor
	cells    []engine.Cell // of all ops, one after the other
	cellEnds []int         // for each op, the end of its cells
	ids      []uint64
	columns  []uint8 // to show, by number, in the order to show them
	rows     []int64
}

// Requests that grew beyond these are left to the collector, so that a few huge
// ones do not stay with every processor: 10,000 ops on four columns fit.
const (
	pooledCellsMax = 1 << 16 // 1 MiB
	pooledRowsMax  = 1 << 16 // 512 KiB
	pooledTextMax  = 1 << 12
	pooledBodyMax  = 1 << 16 // 1,000 ops
)

type requestPool struct{ pool sync.Pool }

func (p *requestPool) acquire() *request {
	if r, ok := p.pool.Get().(*request); ok {
		return r
	}
	return new(request)
}

// release gives a request back. One whose handler panicked must not be.
func (p *requestPool) release(r *request) {
	if cap(r.cells) > pooledCellsMax || cap(r.rows) > pooledRowsMax ||
		cap(r.write.Rows) > pooledRowsMax || cap(r.cursor.text) > pooledTextMax || cap(r.body) > pooledBodyMax {
		return
	}
	r.reset()
	p.pool.Put(r)
}

// reset forgets the call and keeps the buffers.
func (r *request) reset() {
	clear(r.write.Ops) // they point at cells of an array that may be gone
	*r = request{
		write: shard.Write{
			Ops:       r.write.Ops[:0],
			Rows:      r.write.Rows[:0],
			Overflows: r.write.Overflows[:0],
			Token:     r.write.Token[:0],
		},
		body:     r.body[:0],
		cursor:   cursor{text: r.cursor.text[:0]},
		cells:    r.cells[:0],
		cellEnds: r.cellEnds[:0],
		ids:      r.ids[:0],
		columns:  r.columns[:0],
		rows:     r.rows[:0],
	}
}

// readHead reads path, headers and parameters, once the body has come, of which
// a key covers a hash.
func (r *request) readHead(ctx *fasthttp.RequestCtx, b Backend, to target, takes takes) error {
	r.name = to.keyspace
	if takes&takesKeyspace != 0 {
		r.keyspace = b.Keyspace(string(to.keyspace))
		if r.keyspace == nil && len(b.Keyspaces()) == 0 {
			// Every cluster has some: this node does not know its cluster yet.
			return fmt.Errorf("%w: this node does not know its cluster yet", shard.ErrNoLeader)
		}
		if r.keyspace == nil || r.keyspace.Kind != shard.KindCounters {
			return &fault{
				status:  fasthttp.StatusNotFound,
				code:    codeUnknownKeyspace,
				message: shard.ErrUnknownKeyspace.Error(),
			}
		}
	}
	if takes&takesID != 0 {
		var ok bool
		if r.id, ok = parseUint64(to.id); !ok {
			return invalid("id", notUint64)
		}
	}
	r.deadline = r.received.Add(r.timeout)
	r.read.Deadline, r.write.Deadline = r.deadline, r.deadline
	if takes&takesWrite != 0 {
		if err := r.readIdentity(ctx); err != nil {
			return err
		}
	}
	if err := r.readParameters(ctx, takes&takesRead != 0); err != nil {
		return err
	}
	return checkBody(ctx, takes&takesBody != 0)
}

// readTimeout reads Countd-Timeout, which counts from the request's last byte.
func (r *request) readTimeout(ctx *fasthttp.RequestCtx) error {
	r.timeout = timeoutDefault
	if text := ctx.Request.Header.Peek(headerTimeout); text != nil {
		var err error
		if r.timeout, err = time.ParseDuration(string(text)); err != nil || r.timeout <= 0 || r.timeout > timeoutMax {
			return invalid(headerTimeout, "not a duration above 0 and up to 60s, such as 500ms")
		}
	}
	return nil
}

// readIdentity reads what tells a write from all others. A key stands for one
// call with one body: method, path and body are hashed.
func (r *request) readIdentity(ctx *fasthttp.RequestCtx) error {
	h := &ctx.Request.Header
	key, producer, sequence := h.Peek(headerKey), h.Peek(headerProducer), h.Peek(headerSequence)
	switch {
	case key != nil && (producer != nil || sequence != nil):
		return invalid(headerKey, "a write has a key or a producer, not both")
	case key != nil:
		if len(key) < 1 || len(key) > shard.KeyBytesMax {
			return invalid(headerKey, fmt.Sprintf("not 1 to %d bytes", shard.KeyBytesMax))
		}
		r.write.ID = shard.ByKey(key, h.Method(), ctx.URI().PathOriginal(), ctx.Request.Body())
	case producer != nil || sequence != nil:
		if len(producer) < 1 || len(producer) > shard.ProducerBytesMax {
			return invalid(headerProducer, fmt.Sprintf("not 1 to %d bytes", shard.ProducerBytesMax))
		}
		number, ok := parseUint64(sequence)
		if !ok || number == 0 {
			return invalid(headerSequence, "not an integer from 1 to 2^64-1")
		}
		r.write.ID = shard.ByProducer(producer, number)
	}
	return nil
}

// readParameters reads the query, and for a read its headers. A parameter of the
// query goes before the header of its name.
func (r *request) readParameters(ctx *fasthttp.RequestCtx, isRead bool) error {
	level, staleness := []byte(nil), []byte(nil)
	if isRead {
		h := &ctx.Request.Header
		level, staleness = h.Peek(consistency), h.Peek(maxStaleness)
		if text := h.Peek(headerToken); text != nil {
			token, err := shard.ParseToken(text)
			if err != nil {
				return invalid(headerToken, shard.ErrBadToken.Error())
			}
			r.read.Token = token
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
				return invalid(shown(name), "no such parameter of the query")
			}
		}
	}
	return r.readFreshness(level, staleness)
}

// readFreshness reads how fresh a read must be; nil is for not told.
func (r *request) readFreshness(level, staleness []byte) error {
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
	if r.read.Consistency != shard.Bounded {
		return invalid(maxStaleness, "only a bounded read has one")
	}
	d, err := time.ParseDuration(string(staleness))
	if err != nil || d <= 0 || d > maxStalenessMax {
		return invalid(maxStaleness, "not a duration above 0 and up to 1h, such as 500ms")
	}
	r.read.MaxStaleness = d
	return nil
}

// checkBody refuses a body where none is read, and one in a coding that would
// have to be undone.
func checkBody(ctx *fasthttp.RequestCtx, takesBody bool) error {
	if !takesBody {
		if len(ctx.Request.Body()) > 0 {
			return invalid("body", "this call takes none")
		}
		return nil
	}
	coding := ctx.Request.Header.Peek(fasthttp.HeaderContentEncoding)
	if len(coding) > 0 && !bytes.EqualFold(coding, []byte("identity")) {
		return invalid(fasthttp.HeaderContentEncoding, "only identity is understood")
	}
	return nil
}
