package sources

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/raftfsm/rows"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/source"
	"github.com/countd/countd/source/sink"
)

// pastMessages bounds the messages that one call of Past reads.
const pastMessages = 10_000

// Event is the effect of one op on columns of one row.
type Event struct {
	Position Position         `json:"position"`
	ID       string           `json:"id"`
	Add      map[string]int64 `json:"add,omitempty"` // Add or Set
	Set      map[string]int64 `json:"set,omitempty"`
	Floor    *int64           `json:"floor,omitempty"`
}

// Past has the effects of a part of a queue.
type Past struct {
	Events []Event  `json:"events"` // effects on rows of the keyspace, in order
	Next   Position `json:"next"`   // position at which to continue
}

// Past returns the effects of a partition's messages on the rows of a keyspace. It begins at the
// position from. If there are no messages at or above it, Next is the same position. A
// reconciliation uses Past and Rows to compare counts with the data that they should count. Past
// and Rows change nothing.
func (s *Sources) Past(ctx context.Context, name, keyspace string, partition uint32, from string) (*Past, error) {
	at, err := source.ParsePosition(from)
	if err != nil {
		return nil, &errs.ArgumentError{Field: "from", Problem: err.Error()}
	}
	n, src, err := s.find(ctx, name)
	if err != nil {
		return nil, err
	}
	recorded, known := src.Partitions[partition]
	if !known || recorded.Identity == "" {
		return nil, &catalog.RefusedError{Reason: fmt.Sprintf("partition %d was never read", partition)}
	}
	cfg, err := source.ParseConfig(src.Config)
	if err != nil {
		return nil, err
	}
	if same, err := cfg.Position(from); err != nil || same != at {
		return nil, &errs.ArgumentError{Field: "from", Problem: fmt.Sprintf("%s is no id of a Redis stream; did you mean %s?", from, same)}
	}
	if meant := recorded.MeantFrom(); at.Less(meant) {
		return nil, &catalog.RefusedError{Reason: fmt.Sprintf("position %s of partition %d is before %s, where the messages got another meaning: an earlier configuration has counted those below", at, partition, meant)}
	}
	// Refuse positions below Start: an earlier source of this name may have counted those
	// messages, with another meaning.
	if !cfg.Start.Earliest() && recorded.Since() == 1 && at.Less(recorded.Start) {
		return nil, &catalog.RefusedError{Reason: fmt.Sprintf("position %s of partition %d is before %s, where the source began: it has counted none below", at, partition, recorded.Start)}
	}
	broker, err := s.connectCall(ctx, cfg)
	if err != nil {
		return nil, &catalog.RefusedError{Reason: err.Error()}
	}
	defer broker.Close()
	past := source.Past{Number: src.Number, Source: cfg, Partition: partition, Identity: recorded.Identity, Broker: broker, Sink: n.sink}
	ops, next, err := past.Read(ctx, at, pastMessages)
	if err != nil {
		return nil, &catalog.RefusedError{Reason: err.Error()}
	}
	out := &Past{Events: []Event{}, Next: next}
	ks := cmp.Or(n.Keyspace(keyspace), &shard.Keyspace{})
	texts := textIDsOf([]*shard.Keyspace{ks})
	for i := range ops {
		switch op := &ops[i]; {
		case op.Keyspace != keyspace:
		case op.Kind.OfMember():
			return nil, &catalog.RefusedError{Reason: fmt.Sprintf("message at position %s has a member: the queue does not say whether it counted", op.Position)}
		case op.Kind == sink.Add && slices.ContainsFunc(op.Cells, func(c sink.Cell) bool { return !ks.Sums(c.Column) }):
			return nil, &catalog.RefusedError{Reason: fmt.Sprintf("message at position %s adds to a column that may change or refuse increments: the queue does not say what it counted", op.Position)}
		default:
			out.Events = appendEvents(out.Events, op, texts.idOf(op), ks.Floors)
		}
	}
	return out, nil
}

// appendEvents appends the events of an op: one for each delta with a floor, and one for the other
// values together. The floor of a delta is the higher one of the op's floor and the column's floor.
func appendEvents(events []Event, op *sink.Op, id string, floors map[string]int64) []Event {
	plain := Event{Position: op.Position, ID: id}
	counts := make(map[string]int64, len(op.Cells))
	for _, c := range op.Cells {
		floor, has := floors[c.Column]
		if op.HasFloor && (!has || floor < op.Floor) {
			floor, has = op.Floor, true
		}
		if !has || op.Kind == sink.Set {
			counts[c.Column] = c.Value
			continue
		}
		e := plain
		e.Add, e.Floor = map[string]int64{c.Column: c.Value}, &floor
		events = append(events, e)
	}
	if len(counts) == 0 {
		return events
	}
	if op.Kind == sink.Set {
		plain.Set = counts
	} else {
		plain.Add = counts
	}
	return append(events, plain)
}

// Window has the position of a shard in a partition twice: From before Rows has read the rows, and
// To after that.
type Window struct {
	Partition uint32   `json:"partition"`
	From      Position `json:"from"`
	To        Position `json:"to"`
}

// noShard is the shard of a row whose text has no number yet. Its Window reaches from the lowest position of all
// shards to the highest.
const noShard = -1

// Row is a row and its shard.
type Row struct {
	ID     string           `json:"id"`
	Counts map[string]int64 `json:"counts"`
	Shard  int              `json:"shard"`
}

// Rows are rows of a keyspace.
type Rows struct {
	Rows   []Row            `json:"rows"`   // in the order of the ids
	Shards map[int][]Window `json:"shards"` // for each shard of the rows, a Window for each partition
}

// errNoPosition is returned if a shard has no position of the source yet.
var errNoPosition = errors.New("a shard has no position yet: resume the source, and wait until it has read")

// Rows returns rows, and the positions of a source in the shards of these rows. Without ids, it
// returns the positions in all shards. The counts of a row contain all messages below From of its
// shard, and no message at or above To.
//
// A row whose text has no number is zero. After From was read of all shards, the text still had none. So no
// message below the lowest From counted for it.
//
// To guarantee that, Rows reads the positions through the logs of the shards, before and after the
// rows, and it reads the rows linearizably. If To is below From, a seek or a restore has lowered
// the position meanwhile. If a shard splits meanwhile, Rows begins again.
func (s *Sources) Rows(ctx context.Context, name, keyspace string, ids []string) (*Rows, error) {
	n, src, err := s.find(ctx, name)
	if err != nil {
		return nil, err
	}
	ks := n.Keyspace(keyspace)
	if ks == nil {
		return nil, fmt.Errorf("%w: %q", errs.ErrUnknownKeyspace, keyspace)
	}
	if ks.Kind != kinds.Counters {
		return nil, &errs.ArgumentError{Field: "keyspace", Problem: "not one of counters"}
	}
	var out *Rows
	err = byOneLayout(ctx, n, func() (err error) {
		route, _ := n.Layout(ks)
		if out, err = s.rows(ctx, n, src, ks, route, ids); err == nil {
			if now, _ := n.Layout(ks); !now.Equal(route) {
				err = errs.ErrOtherLayout
			}
		}
		return err
	})
	return out, err
}

// rows implements Rows by one route.
func (s *Sources) rows(ctx context.Context, n *node, src catalog.Source, ks *shard.Keyspace, route raftfsm.Route, ids []string) (*Rows, error) {
	numbers, err := n.sink.rowIDs(ctx, ks, ids)
	if err != nil {
		return nil, err
	}
	out := &Rows{Rows: make([]Row, len(ids)), Shards: map[int][]Window{}}
	for number := range int(route.Shards) {
		if len(ids) == 0 && route.Exists(number) {
			out.Shards[number] = []Window{}
		}
	}
	for i, id := range ids {
		number, _ := route.KeyOf(numbers[i])
		if ks.Names != "" && numbers[i] == 0 {
			number = noShard
		}
		out.Rows[i] = Row{ID: id, Counts: map[string]int64{}, Shard: number}
		out.Shards[number] = []Window{}
	}
	err = s.positions(ctx, n, src, ks.Name, out.from)
	if err != nil {
		return nil, err
	}
	if len(ids) > 0 {
		if now, err := n.sink.rowIDs(ctx, ks, ids); err != nil || !slices.Equal(now, numbers) {
			return nil, cmp.Or(err, errs.ErrOtherLayout) // a text has got its number meanwhile
		}
		if err := readRows(ctx, n, ks, numbers, out.Rows); err != nil {
			return nil, err
		}
	}
	return out, s.positions(ctx, n, src, ks.Name, out.to)
}

// from notes the position of a shard before the rows are read.
func (r *Rows) from(shard int, partition uint32, at Position) {
	for _, shard := range []int{shard, noShard} {
		windows, is := r.Shards[shard]
		i := slices.IndexFunc(windows, func(w Window) bool { return w.Partition == partition })
		switch {
		case is && i < 0:
			r.Shards[shard] = append(windows, Window{Partition: partition, From: at})
		case is && at.Less(windows[i].From):
			windows[i].From = at
		}
	}
}

// to notes the position of a shard after the rows were read.
func (r *Rows) to(shard int, partition uint32, at Position) {
	for _, shard := range []int{shard, noShard} {
		for i := range r.Shards[shard] {
			if w := &r.Shards[shard][i]; w.Partition == partition && w.To.Less(at) {
				w.To = at
			}
		}
	}
}

// readRows reads the counts of rows into dst, which has one row for each id.
func readRows(ctx context.Context, n *node, ks *shard.Keyspace, ids []uint64, dst []Row) error {
	width := len(ks.Columns)
	q := rows.Query{Width: width, Rows: make([]int64, len(ids)*width)}
	deadline, has := ctx.Deadline()
	if !has {
		deadline = time.Now().Add(changeTimeout)
	}
	if err := n.Read(ks, &q, ids, &shard.ReadOptions{Consistency: shard.Linearizable, Deadline: deadline}); err != nil {
		return err
	}
	for i := range dst {
		for c, column := range ks.Columns {
			if column != "" { // dropped
				dst[i].Counts[column] = q.Rows[i*width+c]
			}
		}
	}
	return nil
}

// positions reads the position of each partition in each shard of a keyspace, and passes each
// position to take.
func (s *Sources) positions(ctx context.Context, n *node, src catalog.Source, keyspace string, take func(shard int, partition uint32, at Position)) error {
	for _, partition := range slices.Sorted(maps.Keys(src.Partitions)) {
		all, err := n.SourcePositions(ctx, src.Number, partition, keyspace)
		if errors.Is(err, sink.ErrBusy) || errors.Is(err, sink.ErrMoved) || errors.Is(err, sink.ErrStopped) {
			return &catalog.RefusedError{Reason: err.Error()}
		}
		if err != nil {
			return err
		}
		for _, p := range all {
			if !p.Known {
				return &catalog.RefusedError{Reason: errNoPosition.Error()}
			}
			take(p.Shard, partition, p.Position)
		}
	}
	return nil
}
