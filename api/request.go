package api

import (
	"sync"
	"time"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/inbox"
	"github.com/countd/countd/internal/strictjson"
	"github.com/countd/countd/names"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/raftfsm/rankings"
	"github.com/countd/countd/raftfsm/rows"
	"github.com/countd/countd/shard"
)

// request holds the state and the buffers of one call. Requests are pooled: from acquire to
// release a request belongs to one handler. The backend keeps no reference to it.
type request struct {
	backend    Backend
	keyspace   *shard.Keyspace // if the endpoint has one
	caughtUp   bool            // the request has waited for the newest keyspaces and columns
	name       []byte          // first name in the path, such as {keyspace}
	column     []byte          // {column} of the path
	takes      takes           // the properties of the endpoint
	query      []parameter     // the parameters that the endpoint accepts
	id         uint64          // if the endpoint has one
	asked      asked
	timeout    time.Duration // time from received to the deadline
	deadline   time.Time
	read       shard.ReadOptions
	namesLevel bool // the request sets its consistency
	write      shard.Write
	ops        counters.Ops // ops of write, if it changes rows or sets
	wantNone   bool
	sets       setCall // only for a call about sets of members

	body     []byte // received bytes, which the cursor parses
	held     int    // bytes reserved in Server.bodies
	cursor   cursor
	cells    []engine.Cell // cells of all ops, one after the other
	cellEnds []int         // for each op, the index after its last cell
	ids      []uint64
	columns  []uint8    // numbers of the columns to return, in this order
	rows     rows.Query // last read of rows
	poll     inbox.Poll

	texts names.Slots

	identity
}

// release pools no request with larger buffers, so that a few huge requests do not occupy memory
// forever. The buffers of 10,000 ops on four columns fit.
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
	if cap(r.cells) > pooledCellsMax || cap(r.rows.Rows) > pooledRowsMax ||
		cap(r.write.Rows) > pooledRowsMax || cap(r.cursor.Text) > pooledTextMax || cap(r.body) > pooledBodyMax {
		return
	}
	r.reset()
	p.pool.Put(r)
}

// reset clears the request, but keeps its buffers.
func (r *request) reset() {
	r.poll.Channels, r.poll.Dots = r.poll.Channels[:0], r.poll.Dots[:0]
	spaces := r.write.Spaces
	clear(spaces) // do not keep a dropped keyspace alive
	clear(r.ops)  // do not keep an old array of cells alive
	r.texts.Reset()
	*r = request{
		write: shard.Write{
			Rows:      r.write.Rows[:0],
			Overflows: r.write.Overflows[:0],
			Cuts:      r.write.Cuts[:0],
			Changed:   r.write.Changed[:0],
			Unknown:   r.write.Unknown[:0],
			Token:     shard.Token{At: r.write.Token.At[:0]},
			Spaces:    spaces[:0],
			In:        r.write.In[:0],
		},
		ops:      r.ops[:0],
		body:     r.body[:0],
		cursor:   cursor{strictjson.Cursor{Text: r.cursor.Text[:0]}},
		cells:    r.cells[:0],
		cellEnds: r.cellEnds[:0],
		ids:      r.ids[:0],
		columns:  r.columns[:0],
		rows:     rows.Query{Rows: r.rows.Rows[:0]},
		sets:     setCall{in: r.sets.in[:0]},
		poll:     r.poll,
		texts:    r.texts,
	}
}

// asked has the query parameters of reads. The slices alias the request.
type asked struct {
	level, staleness []byte // of the query, or else of the headers; nil if not given

	since     inbox.Stand
	detail    bool
	limit     int // number of entries of a page; 0 if not given
	window    rankings.Window
	hasWindow bool
	after     uint64 // the last id of the previous page
	hasAfter  bool

	// These are for a page of posts.
	post   counters.Post // last post of the previous page, if hasAfter is set
	group  string
	counts *shard.Keyspace
	in     string // comma-separated columns; each post of the answer shows whether the user is in their sets
}

// keyspaceOf returns the keyspace of an op. ks is the keyspace of the write, unless the write has
// several.
func keyspaceOf(w *shard.Write, ks *shard.Keyspace, op int) *shard.Keyspace {
	if len(w.Spaces) == 0 {
		return ks
	}
	return w.Spaces[w.In[op]]
}

// setCall holds the arguments of a call about sets of members.
type setCall struct {
	column int    // number of the {column} in the path
	users  string // space of members; only for ops
	member uint64 // the member in the body
	asked  bool   // the read of counts also asks for a member
	page   members.Page
	in     []bool // for each set that was read, whether it has the member

	contains counters.ContainsQuery // last read of sets

	uncounted bool // members join without changing the counts
}

func rowMember(ks *shard.Keyspace) string {
	if ks != nil && ks.Kind == kinds.Unread {
		return "user"
	}
	return "id"
}

// idName returns the name of the number in the path, for errors.
func (r *request) idName() string {
	if r.takes&takesMember != 0 {
		return "member"
	}
	if r.takes&ofAuthor != 0 {
		return "author"
	}
	return r.rowMember()
}
