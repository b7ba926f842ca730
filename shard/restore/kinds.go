package restore

import (
	"fmt"
	"slices"
	"time"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/raftfsm/board"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/feed"
	"github.com/countd/countd/raftfsm/outbox"
	"github.com/countd/countd/raftfsm/rows"
	"github.com/countd/countd/raftfsm/unread"
)

// This file restores everything except rows of counts and positions.

// clear empties a shard of feeds, or the board, and begins the restore. Without force it returns
// ErrNotEmpty if the shard has rows.
func (r *restore) clear(force bool) error {
	led, err := r.leader()
	if err != nil {
		return err
	}
	if led.Rows > 0 && !force {
		return r.notEmpty()
	}
	if r.cfg.Kind == codec.KindBoard {
		return r.begin(batch{Write: Write{Ops: []engine.Op{{}}, Board: &board.Op{Kind: board.Clear}}})
	}
	return r.begin(batch{Write: Write{Ops: []engine.Op{{ID: r.route.LeastID(r.cfg.Shard)}}, Feeds: []feed.Op{{Kind: feed.Clear}}}})
}

// cursors adds rows of cursors to the next writes. It sets a cursor beyond the board back to the board's
// end: a backup that took the board first has such cursors, and they would hide later notices and
// firings. It leaves out the cursor of a channel or dot that the board lacks, because another one
// may get its number.
func (r *restore) cursors(p *engine.Page) error {
	if r.end == nil {
		end, err := r.cfg.Node.BoardEnd(time.Now().Add(restoreReadTimeout))
		if err != nil {
			return err
		}
		r.end = end
	}
	for i, key := range p.IDs {
		r.setBack(key, p.Row(i))
	}
	return r.page(unread.Cursors, p)
}

// setBack bounds a row of cursors by the board, and updates the expected state of the shard.
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

// body adds what the shard keeps under a key besides rows to the next writes.
func (r *restore) body(key uint64, body any) error {
	switch body := body.(type) {
	case *feed.Feed:
		return r.feed(key, body)
	case *outbox.Outbox:
		return r.outbox(key, body)
	case *board.View:
		return r.board(body)
	}
	return fmt.Errorf("a %T cannot be restored", body)
}

// feed adds one user's feed to the next writes.
func (r *restore) feed(key uint64, of *feed.Feed) error {
	id, err := r.idOf(key)
	if err != nil {
		return err
	}
	add := func(op feed.Op) {
		op.User = id
		r.next.Ops = append(r.next.Ops, engine.Op{ID: id})
		r.next.Feeds = append(r.next.Feeds, op)
		r.next.followees += len(op.Followees)
	}
	add(feed.Op{Kind: feed.Reset, Followees: slices.Clone(of.Followees)})
	for _, g := range of.Groups {
		op := feed.Op{Kind: feed.PutGroup, Group: g.Name}
		for _, id := range g.Followees {
			op.Followees = append(op.Followees, feed.Followee{ID: id})
		}
		add(op)
	}
	if len(r.next.Ops) < restoreOpsMax && r.next.followees < restoreFolloweesMax {
		return nil
	}
	return r.send()
}

// outbox adds one author's outbox to the next writes. Rows come before outboxes.
func (r *restore) outbox(key uint64, box *outbox.Outbox) error {
	id, err := r.idOf(key)
	if err != nil {
		return err
	}
	if len(r.next.Ops) > len(r.next.Outbox) { // rows are queued, and outboxes cannot share their write
		if err := r.send(); err != nil {
			return err
		}
	}
	r.next.Ops = append(r.next.Ops, engine.Op{ID: id})
	put := outbox.Outbox{IDs: slices.Clone(box.IDs), Trimmed: box.Trimmed}
	r.next.Outbox = append(r.next.Outbox, outbox.Op{Kind: outbox.Put, Outbox: put})
	if r.next.posts += len(box.IDs); len(r.next.Ops) < restoreOpsMax && r.next.posts < restorePostsMax {
		return nil
	}
	return r.send()
}

// member adds a member of the snapshot, with the time at which it joined, to the next writes. The row has
// the count.
func (r *restore) member(p members.Pair, at members.Stamp) error {
	var was, is members.State
	was.Add(p, at)
	column := p.Column
	if int(column) >= len(r.places) {
		return r.hasColumn(p.Row, int(column))
	}
	place := r.places[column]
	if p.Column = uint8(place); place != leftOut {
		is.Add(p, at)
	}
	r.changed.Digest += is.Digest - was.Digest
	if place == leftOut {
		return nil
	}
	id, err := r.idOf(p.Row)
	if err != nil {
		return err
	}
	return r.add(rows.Counts, engine.Copy(id, p.Column, p.Member, uint64(at)))
}

// board writes all channels and dots one after another, because they are few.
func (r *restore) board(view *board.View) error {
	for name, c := range view.Channels {
		if err := r.putBoard(&board.Op{Kind: board.PutChannel, Name: name, Channel: &c}); err != nil {
			return err
		}
	}
	for name, d := range view.Dots {
		if err := r.putBoard(&board.Op{Kind: board.PutDot, Name: name, Dot: &d}); err != nil {
			return err
		}
	}
	return nil
}

func (r *restore) putBoard(op *board.Op) error {
	r.next.Ops, r.next.Board = []engine.Op{{}}, op
	return r.flush()
}
