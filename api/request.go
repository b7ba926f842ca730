package api

import (
	"sync"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/countd/countd/auth"
	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/internal/strictjson"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/rows"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/unread"
)

// request holds the state and the buffers of one call. It is pooled: From acquire to release it
// belongs to one handler, and the backend keeps no reference to it.
type request struct {
	backend    Backend
	keyspace   *shard.Keyspace // if the endpoint has one
	caughtUp   bool            // whether keyspace is at least as new as the request
	name       []byte          // {keyspace} or another first name of the path
	column     []byte          // {column} of the path
	takes      takes           // the properties of the endpoint
	id         uint64          // if the endpoint has one
	asked      asked           // parameters of reads of unread numbers
	received   time.Time       // when the request's last byte came
	timeout    time.Duration   // time from received to the deadline
	deadline   time.Time
	read       shard.ReadOptions
	namesLevel bool // whether the request names its consistency
	write      shard.Write
	wantNone   bool
	sets       setCall // only for a call about sets of members

	body     []byte // as received; the cursor parses it
	held     int    // bytes reserved from the server's memory for bodies
	cursor   cursor
	cells    []engine.Cell // of all ops, one after the other
	cellEnds []int         // for each op, the end of its cells
	ids      []uint64
	columns  []uint8 // to return, by number, in this order
	rows     []int64
	poll     unread.Poll

	rowsQuery rows.Query // of the last read of rows

	auth     *auth.Authorizer // nil if it is off, or the endpoint needs nothing
	caller   *auth.Caller     // nil for nobody
	excused  bool             // whether the call should be refused, but is served in mode permissive
	from     *fasthttp.RequestCtx
	endpoint *endpoint
}

// release drops larger buffers, so that a few huge requests do not occupy memory on every
// processor. 10,000 ops on four columns fit.
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

// release returns a request to the pool. A request whose handler panicked must not be
// released.
func (p *requestPool) release(r *request) {
	if cap(r.cells) > pooledCellsMax || cap(r.rows) > pooledRowsMax ||
		cap(r.write.Rows) > pooledRowsMax || cap(r.cursor.Text) > pooledTextMax || cap(r.body) > pooledBodyMax {
		return
	}
	r.reset()
	p.pool.Put(r)
}

// reset forgets the call and keeps the buffers.
func (r *request) reset() {
	r.poll.Channels, r.poll.Dots = r.poll.Channels[:0], r.poll.Dots[:0]
	spaces := r.write.Spaces
	clear(spaces)      // do not keep a dropped keyspace alive
	clear(r.write.Ops) // do not keep an old array of cells alive
	*r = request{
		write: shard.Write{
			Ops:       r.write.Ops[:0],
			Rows:      r.write.Rows[:0],
			Overflows: r.write.Overflows[:0],
			Cuts:      r.write.Cuts[:0],
			Changed:   r.write.Changed[:0],
			Unknown:   r.write.Unknown[:0],
			Token:     shard.Token{At: r.write.Token.At[:0]},
			Spaces:    spaces[:0],
			In:        r.write.In[:0],
		},
		body:     r.body[:0],
		cursor:   cursor{strictjson.Cursor{Text: r.cursor.Text[:0]}},
		cells:    r.cells[:0],
		cellEnds: r.cellEnds[:0],
		ids:      r.ids[:0],
		columns:  r.columns[:0],
		rows:     r.rows[:0],
		sets:     setCall{in: r.sets.in[:0]},
		poll:     r.poll,
	}
}

// asked is the query of a read of unread numbers.
type asked struct {
	since    unread.Stand
	detail   bool
	limit    int    // entries of a page; 0 if not given
	after    uint64 // the last id of the previous page
	hasAfter bool

	// Of a page of posts.
	post   counters.Post // the last post of the previous page, if hasAfter is set
	group  string
	counts *shard.Keyspace
	in     string // columns, with commas between, in whose sets the page looks for the user; "" for none
}

// keyspaceOf returns the keyspace of an op of a write to ks. If ks is nil, the write has several
// keyspaces.
func keyspaceOf(w *shard.Write, ks *shard.Keyspace, op int) *shard.Keyspace {
	if ks != nil {
		return ks
	}
	return w.Spaces[w.In[op]]
}

// setCall holds the arguments of a call about sets of members.
type setCall struct {
	column int    // {column} of the path, by number
	member uint64 // of the body
	asked  bool   // whether a read of counts names a member
	page   members.Page
	in     []bool // whether member is in each set that was read

	contains counters.ContainsQuery // of the last read of sets

	uncounted bool // members join without changing the counts
}

func rowMember(ks *shard.Keyspace) string {
	if ks != nil && ks.Kind == shard.KindUnread {
		return "user"
	}
	return "id"
}
