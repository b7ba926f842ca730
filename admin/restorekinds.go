package admin

import (
	"fmt"
	"slices"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/feed"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/raftfsm/names"
	"github.com/countd/countd/raftfsm/rows"
	"github.com/countd/countd/raftfsm/unread"
	"github.com/countd/countd/shard/errs"
)

// This file restores everything but counts and positions.

// clear deletes everything in a shard of feeds or the board, and begins the restore. It deletes no names. Without
// force it returns ErrShardNotEmpty if the shard has rows.
func (r *restore) clear(force bool) error {
	led, err := r.leader()
	if err != nil {
		return err
	}
	if r.kind == codec.KindNames { // nothing is deleted: what is there must agree
		given := names.TextsQuery{Numbers: []uint64{1}}
		if err := r.read(r.keyspace, &given); err != nil {
			return err
		}
		r.merges = led.Rows > 0 || given.Next > 1 // the digest covers the next number too
		return r.begin(names.Ops{{Kind: names.Put}})
	}
	if led.Rows > 0 && !force {
		return r.notEmpty()
	}
	if r.kind == codec.KindBoard {
		return r.begin(&unread.BoardOp{Kind: unread.Clear})
	}
	return r.begin(feed.Ops{{Kind: feed.Clear, User: r.route.LeastID(r.shard)}})
}

// cursors adds rows of cursors to the next writes. A backup that copied the board first may have
// cursors beyond the restored board. The restore moves such cursors back to the board's end, so
// that they hide no later notice or firing. A cursor of a channel or dot that the board lacks is
// omitted, because another channel or dot may get its number.
func (r *restore) cursors(p *engine.Page) error {
	if r.end == nil {
		var q unread.BoardQuery
		ks := r.node.Keyspace(kinds.KeyspaceBoard)
		if ks == nil {
			return fmt.Errorf("%w: keyspace %s is being created", errs.ErrNoLeader, kinds.KeyspaceBoard)
		}
		if err := r.read(ks, &q); err != nil {
			return err
		}
		end := q.View.CursorsEnd()
		r.end = &end
	}
	for i, key := range p.IDs {
		row := p.Row(i)
		_, at, here, err := r.place(key)
		if err != nil {
			return err
		}
		if !here {
			r.changed.Digest -= unread.CursorsDigest(key, row)
			r.changed.Rows--
			clear(row)
			continue
		}
		r.changed.Digest += unread.CursorsDigest(at, row) - unread.CursorsDigest(key, row)
		r.setBack(at, row)
	}
	return r.page(unread.Cursors, p)
}

// setBack bounds a row of cursors by the board, and updates r.changed.
func (r *restore) setBack(key uint64, row []int64) {
	was, moved := unread.CursorsDigest(key, row), uint64(0)
	for column, at := range row {
		if at > r.end[column] {
			row[column] = r.end[column]
			moved++
		}
	}
	if moved == 0 {
		return
	}
	r.changed.SetBack += moved
	r.changed.Digest += unread.CursorsDigest(key, row) - was
	if !slices.ContainsFunc(row, func(at int64) bool { return at != 0 }) {
		r.changed.Rows--
	}
}

// body adds a feed, an outbox, the board or a name to the next writes.
func (r *restore) body(key uint64, body any) error {
	switch body := body.(type) {
	case *feed.Feed:
		return r.feed(key, body)
	case *counters.Outbox:
		return r.outbox(key, body)
	case *unread.BoardView:
		return r.board(body)
	case *names.Name:
		return r.name(body)
	}
	return fmt.Errorf("a %T cannot be restored", body)
}

// feed adds one user's feed to the next writes.
func (r *restore) feed(key uint64, of *feed.Feed) error {
	id, at, here, err := r.place(key)
	if err != nil {
		return err
	}
	r.changed.Digest -= of.Digest(key)
	if !here {
		r.changed.Rows--
		return nil
	}
	r.changed.Digest += of.Digest(at)
	ops, err := opsOf[feed.Ops](r)
	if err != nil {
		return err
	}
	add := func(op feed.Op) {
		*ops = append(*ops, op)
		r.next.ids += len(op.Followees)
	}
	add(feed.Op{Kind: feed.Reset, User: id, Followees: slices.Clone(of.Followees)})
	for _, g := range of.Groups {
		op := feed.Op{Kind: feed.PutGroup, User: id, Group: g.Name}
		for _, id := range g.Followees {
			op.Followees = append(op.Followees, feed.Followee{ID: id})
		}
		add(op)
	}
	return r.added()
}

// name adds a text and its number to the next writes.
func (r *restore) name(of *names.Name) error {
	ops, err := opsOf[names.Ops](r)
	if err != nil {
		return err
	}
	*ops = append(*ops, names.Op{Kind: names.Put, Text: of.Text, Number: of.Number, At: of.At})
	if of.At > 0 && ops.Len() >= restoreOpsMax {
		return r.flush() // the shard takes marks in their order only
	}
	return r.added()
}

// outbox adds one author's outbox to the next writes. In the snapshot, rows precede outboxes.
func (r *restore) outbox(key uint64, box *counters.Outbox) error {
	id, at, here, err := r.place(key)
	if err != nil {
		return err
	}
	r.changed.Digest -= box.Digest(key)
	if !here {
		return nil
	}
	r.changed.Digest += box.Digest(at)
	ops, err := opsOf[counters.OutboxOps](r)
	if err != nil {
		return err
	}
	put := counters.Outbox{IDs: slices.Clone(box.IDs), Trimmed: box.Trimmed}
	*ops = append(*ops, counters.OutboxOp{Author: id, PostOp: counters.PostOp{Kind: counters.PutOutbox, Outbox: put}})
	r.next.ids += len(box.IDs)
	return r.added()
}

// member adds a member of the snapshot, with the time at which it joined, to the next writes. It
// changes no count, because the row has the restored count.
func (r *restore) member(p members.Pair, at members.Stamp) error {
	var was, is members.State
	was.Add(p, at)
	r.changed.Digest -= was.Digest
	id, key, here, err := r.place(p.Row)
	if err != nil || !here {
		return err
	}
	column := p.Column
	if int(column) >= len(r.places) {
		return r.hasColumn(p.Row, int(column))
	}
	place := r.places[column]
	if place == leftOut {
		return nil
	}
	p.Row, p.Column = key, uint8(place)
	is.Add(p, at)
	r.changed.Digest += is.Digest
	return r.add(rows.Counts, engine.Copy(id, p.Column, p.Member, uint64(at)))
}

// board writes each channel and each dot separately, because there are few.
func (r *restore) board(view *unread.BoardView) error {
	for name, c := range view.Channels {
		if err := r.putBoard(&unread.BoardOp{Kind: unread.PutChannel, Name: name, Channel: &c}); err != nil {
			return err
		}
	}
	for name, d := range view.Dots {
		if err := r.putBoard(&unread.BoardOp{Kind: unread.PutDot, Name: name, Dot: &d}); err != nil {
			return err
		}
	}
	return nil
}

func (r *restore) putBoard(op *unread.BoardOp) error {
	r.next.ops = op
	return r.flush()
}
