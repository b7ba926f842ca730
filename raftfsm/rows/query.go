package rows

import (
	"encoding/binary"
	"slices"
	"time"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm"
)

// ParseQuery implements raftfsm.Kind for the queries of this package.
func ParseQuery(number byte, r *wire.Reader) raftfsm.Query {
	switch number {
	case 0:
		return parseQuery(r)
	case 1:
		return parseScan(r)
	}
	return raftfsm.NoQuery(number, r)
}

// Query reads the rows of ids from a table. Each row is as of one moment; the moments of different
// rows may differ.
type Query struct {
	raftfsm.Defaults
	Table raftfsm.Table
	Width int     // number of columns of each row
	Rows  []int64 // the answer, by id; Width counts for each id
}

// Number implements Query.
func (*Query) Number() byte { return 0 }

// Limits implements Query.
func (q *Query) Limits(keys int) raftfsm.Limits {
	return raftfsm.Limits{Keys: raftfsm.ReadKeysMax, Bytes: 8 * keys * (1 + q.Width), Answer: keys * q.Width * binary.MaxVarintLen64}
}

// One implements Query.
func (q *Query) One(m raftfsm.Machine, key uint64) bool {
	table := m.TableOf(q.Table)
	return table != nil && table.Get(key, q.Rows[:q.Width])
}

// Answer implements Query. The words are Width counts for each key.
func (q *Query) Answer(m raftfsm.Machine, p *raftfsm.Part, disk bool, deadline time.Time) error {
	p.Resize(len(p.Keys) * q.Width)
	return raftfsm.ReadRows(m, q.Table, p.Keys, q.Width, p.Words, disk, deadline)
}

// Join implements Query.
func (q *Query) Join(read *raftfsm.Read) bool {
	for s := range read.Parts {
		p := &read.Parts[s]
		if p.Failed {
			continue
		}
		for i, at := range p.At {
			copy(q.Rows[at*q.Width:(at+1)*q.Width], p.Words[i*q.Width:])
		}
	}
	return false
}

// AppendTo implements Query: table (1) | columns.
func (q *Query) AppendTo(dst []byte, _ *raftfsm.Part) []byte {
	return binary.AppendUvarint(append(dst, byte(q.Table)), uint64(q.Width))
}

func parseQuery(r *wire.Reader) raftfsm.Query {
	return &Query{Table: raftfsm.Table(r.Byte()), Width: int(r.UintTo(engine.ColumnsMax))}
}

// ParseAnswer implements Query.
func (q *Query) ParseAnswer(r *wire.Reader, p *raftfsm.Part) {
	p.Words = raftfsm.ParseWords(r, len(p.Keys)*q.Width)
}

// Scan reads up to Limit rows of ids above After, or from the first id if HasAfter is false,
// ascending by id. It leaves out rows that have counts only in dropped columns. Each row is as of a
// moment during the scan. The read of a Scan has no ids.
type Scan struct {
	raftfsm.Defaults
	Table    raftfsm.Table
	Width    int // number of columns of each row
	Limit    int // up to ReadKeysMax
	After    uint64
	HasAfter bool
	Dropped  []int // numbers of the dropped columns; the answer has 0 in them
	// If OneShard is set, the scan reads only the rows of Shard, beginning at the key From.
	OneShard bool
	Shard    int
	From     uint64
	// If SkipUnreadable is set, the scan leaves out shards that no living node can read, and lists
	// them in Unreadable. The read must be stale.
	SkipUnreadable bool

	IDs  []uint64 // the answer
	Rows []int64  // len(IDs)*Width
	More bool     // there may be rows after the last id
	// Unreadable lists the shards that the scan left out, in ascending order.
	Unreadable []int

	chunk int       // maximum number of rows in a Part of one shard
	runs  []scanRun // by shard
}

// scanRun is the position of a scan in one shard.
type scanRun struct {
	from  uint64 // the key at which the next part begins
	ended bool   // the shard has no rows at or above from
	out   bool   // no living node can read the shard

	rows []int64 // rows that were read but not merged yet: for each row, its id and then its counts
}

// A scan reads scanSlack rows more from each shard than the shard's even share of a page. Reading a
// whole page from each shard would multiply the memory by the number of shards. Ids that are spread
// evenly rarely need a second read.
const scanSlack = 64

// Number implements Query.
func (*Scan) Number() byte { return 1 }

// Limits implements Query.
func (q *Scan) Limits(int) raftfsm.Limits {
	words := 1 + q.chunk*(1+q.Width)
	return raftfsm.Limits{Keys: 1, Alone: true, Bytes: 8 * words, Answer: words * binary.MaxVarintLen64, Skip: q.SkipUnreadable}
}

// Split implements Query.
func (q *Scan) Split(read *raftfsm.Read) {
	shards := len(read.Parts)
	q.IDs, q.Rows, q.More, q.Unreadable, q.runs = nil, nil, false, nil, make([]scanRun, shards)
	q.chunk = max(1, q.Limit) // a Part of 0 rows would make no progress
	if !q.OneShard {
		q.chunk = min(q.chunk, q.Limit/shards+scanSlack)
	}
	for s := range q.runs {
		r := &q.runs[s]
		if q.OneShard {
			r.from, r.ended = q.From, s != q.Shard
		} else if q.HasAfter {
			from, found := read.Route.FirstAbove(q.After, s)
			r.from, r.ended = from, !found
		}
		r.ended = r.ended || !read.Route.Exists(s)
	}
	q.next(read)
}

// next makes the read continue in the shards that may have more rows and whose rows so far are all
// merged. It reports whether there are such shards.
func (q *Scan) next(read *raftfsm.Read) (more bool) {
	for s := range q.runs {
		p, r := &read.Parts[s], &q.runs[s]
		if p.Keys = p.Keys[:0]; len(r.rows) == 0 && !r.ended {
			p.Keys, more = append(p.Keys, r.from), true
		}
	}
	return more
}

// Answer implements Query. Words contains the number of rows, and then the key and the counts of
// each row. Answer may read the disk.
func (q *Scan) Answer(m raftfsm.Machine, p *raftfsm.Part, disk bool, _ time.Time) error {
	table := m.TableOf(q.Table)
	switch {
	case table == nil:
		return raftfsm.ErrOtherKind
	case !disk:
		return raftfsm.ErrNotInMemory
	}
	rows := append(p.Words[:0], 0)
	err := table.Scan(p.Keys[0], q.Width, func(page *engine.Page) bool {
		for i, key := range page.IDs[:min(len(page.IDs), q.chunk-int(rows[0]))] {
			rows = append(append(rows, int64(key)), page.Counts[i*q.Width:(i+1)*q.Width]...)
			rows[0]++
		}
		return int(rows[0]) < q.chunk
	})
	p.Words = rows
	return raftfsm.TableFailure(m, q.Table, table, err)
}

// Join implements Query. It merges the rows of the shards until the answer has Limit rows, or until
// it needs more rows of a shard.
func (q *Scan) Join(read *raftfsm.Read) (again bool) {
	if read.Err != nil {
		return false
	}
	for s := range q.runs {
		p, r := &read.Parts[s], &q.runs[s]
		switch {
		case len(p.Keys) == 0:
		case p.Skipped:
			r.ended, r.out = true, true
		default:
			q.take(read, s)
		}
	}
	for empty := true; len(q.IDs) < q.Limit; {
		if empty && q.next(read) {
			return true
		}
		least := -1
		for s := range q.runs {
			if r := &q.runs[s]; len(r.rows) > 0 && (least < 0 || uint64(r.rows[0]) < uint64(q.runs[least].rows[0])) {
				least = s
			}
		}
		if least < 0 {
			break
		}
		r := &q.runs[least]
		q.IDs = append(q.IDs, uint64(r.rows[0]))
		q.Rows = append(q.Rows, r.rows[1:1+q.Width]...)
		r.rows = r.rows[1+q.Width:]
		empty = len(r.rows) == 0
	}
	for s := range q.runs {
		r := &q.runs[s]
		q.More = q.More || len(r.rows) > 0 || !r.ended
		if r.out {
			q.Unreadable = append(q.Unreadable, s)
		}
	}
	return false
}

// take moves the Words of a Part to the run of its shard. All earlier rows of the run must be
// merged.
func (q *Scan) take(read *raftfsm.Read, s int) {
	p, r := &read.Parts[s], &q.runs[s]
	size, rows := 1+q.Width, p.Words[1:]
	if r.ended = int(p.Words[0]) < q.chunk; !r.ended {
		last := uint64(rows[len(rows)-size])
		r.from, r.ended = last+1, last == 1<<64-1
	}
	r.rows = slices.Grow(r.rows[:0], len(rows))
	for row := range slices.Chunk(rows, size) {
		if q.shows(row[1:]) {
			r.rows = append(append(r.rows, int64(read.Route.IDOf(s, uint64(row[0])))), row[1:]...)
		}
	}
}

// shows sets the counts of dropped columns to 0. It reports whether the row has a count other than
// 0 in another column. If no column is dropped, it reports true for every row.
func (q *Scan) shows(counts []int64) bool {
	if len(q.Dropped) == 0 {
		return true
	}
	for _, column := range q.Dropped {
		if column < len(counts) {
			counts[column] = 0
		}
	}
	return slices.ContainsFunc(counts, func(count int64) bool { return count != 0 })
}

// AppendTo implements Query: table (1) | columns | rows to read.
func (q *Scan) AppendTo(dst []byte, _ *raftfsm.Part) []byte {
	dst = binary.AppendUvarint(append(dst, byte(q.Table)), uint64(q.Width))
	return binary.AppendUvarint(dst, uint64(q.chunk))
}

func parseScan(r *wire.Reader) raftfsm.Query {
	return &Scan{Table: raftfsm.Table(r.Byte()), Width: int(r.UintTo(engine.ColumnsMax)), chunk: int(r.UintTo(raftfsm.ReadKeysMax))}
}

// ParseAnswer implements Query.
func (q *Scan) ParseAnswer(r *wire.Reader, p *raftfsm.Part) {
	p.Words = raftfsm.ParseCounted(r, p.Words[:0], q.chunk, func(n int) int { return n * (1 + q.Width) })
}
