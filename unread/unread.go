// Package unread computes, from the data of shards, what users have not seen: notices of channels,
// red dots and posts of followees, and all of these in one poll. It keeps no state. It never writes
// to a user because something happened to all users.
//
// Invariant: the package decides how a user's cursor moves before it proposes, from reads that see
// every write acknowledged before. The proposal contains the whole decision, so that each replica
// does the same.
package unread

import (
	"errors"
	"fmt"
	"time"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/board"
	"github.com/countd/countd/raftfsm/feed"
	"github.com/countd/countd/raftfsm/rows"
	"github.com/countd/countd/raftfsm/unread"
	"github.com/countd/countd/shard"
)

// FolloweesMax bounds the followees of one user.
const FolloweesMax = feed.FolloweesMax

// NamesMax bounds the channels and dots of a cluster together.
const NamesMax = unread.CursorsMax

// ErrNoNotice is returned by Retract for a notice that was never published.
var ErrNoNotice = errors.New("no such notice")

// Node has the methods of a node that this package calls. *shard.Node implements it and documents
// them.
type Node interface {
	Keyspace(name string) *shard.Keyspace
	Holds(ks *shard.Keyspace) bool
	Read(ks *shard.Keyspace, q raftfsm.Query, ids []uint64, opt *shard.ReadOptions) error
	Write(ks *shard.Keyspace, w *shard.Write) error
}

// Numbers answers for all users. Any goroutine may call its methods.
//
// The caller of a write passes a shard.Write with the identity and the deadline of the request. The
// method sets its Duplicate and Token, and owns the rest of it until it returns. Errors are
// shard's, or this package's.
type Numbers struct{ node Node }

// New returns the numbers of a node.
func New(node Node) *Numbers { return &Numbers{node} }

// keyspace returns a keyspace of unread numbers.
func (n *Numbers) keyspace(name, kind string) (*shard.Keyspace, error) {
	ks := n.node.Keyspace(name)
	if ks == nil || ks.Kind != kind {
		return nil, fmt.Errorf("%w: %s; the cluster version is not high enough yet", shard.ErrUnknownKeyspace, name)
	}
	return ks, nil
}

func (n *Numbers) board(opt *shard.ReadOptions) (*board.View, error) {
	var q board.Query
	err := n.readBoard(&q, opt)
	return q.View, err
}

func (n *Numbers) readBoard(q *board.Query, opt *shard.ReadOptions) error {
	ks, err := n.keyspace(shard.KeyspaceBoard, shard.KindBoard)
	if err != nil {
		return err
	}
	return n.node.Read(ks, q, nil, opt)
}

// boardNow returns a board that includes every write acknowledged before the call.
func (n *Numbers) boardNow(deadline time.Time) (*board.View, error) {
	return n.board(&shard.ReadOptions{Consistency: shard.Linearizable, Deadline: deadline})
}

// cursors returns the first width columns of the row of a user's cursors.
func (n *Numbers) cursors(user uint64, width int, opt *shard.ReadOptions) ([]int64, error) {
	ks, err := n.keyspace(shard.KeyspaceUnread, shard.KindUnread)
	if err != nil {
		return nil, err
	}
	q := rows.Query{Table: unread.Cursors, Width: width, Rows: make([]int64, width)}
	return q.Rows, n.node.Read(ks, &q, []uint64{user}, opt)
}

// writeUser writes one op on one user. It returns the first width columns of the row that the op
// returned.
func (n *Numbers) writeUser(w *shard.Write, table raftfsm.Table, op engine.Op, width int) ([]int64, error) {
	ks, err := n.keyspace(shard.KeyspaceUnread, shard.KindUnread)
	if err != nil {
		return nil, err
	}
	w.Ops, w.Table, w.Width = append(w.Ops[:0], op), table, width
	w.Rows = make([]int64, width)
	return w.Rows, n.node.Write(ks, w)
}

// touch writes an op without effect to a user. A request that moves no cursor records its identity
// this way, so that a repeat moves none either.
func (n *Numbers) touch(w *shard.Write, user uint64) error {
	_, err := n.writeUser(w, rows.Counts, engine.Op{ID: user, Kind: engine.OpAdd, Cells: []engine.Cell{{}}}, 1)
	return err
}

// move moves one cursor of a user. It returns the row up to that cursor's column. creation is
// the token of the write that made the channel or dot. w.Token then includes it.
func (n *Numbers) move(w *shard.Write, user uint64, kind engine.OpKind, number uint8, seq int64, creation shard.Token) ([]int64, error) {
	op := engine.Op{ID: user, Kind: kind, Cells: []engine.Cell{{Column: number, Value: seq + 1}}}
	row, err := n.writeUser(w, unread.Cursors, op, int(number)+1)
	w.Token.At = append(w.Token.At, creation.At...)
	return row, err
}

// writeBoard writes one op on the board. It returns the number of the channel's last notice, or how
// often the dot was fired. For a repeat it returns the value of the first answer.
func (n *Numbers) writeBoard(w *shard.Write, op *board.Op) (value int64, err error) {
	ks, err := n.keyspace(shard.KeyspaceBoard, shard.KindBoard)
	if err != nil {
		return 0, err
	}
	w.Ops, w.Board, w.Width = append(w.Ops[:0], engine.Op{}), op, 2
	w.Rows = make([]int64, w.Width)
	if err := n.node.Write(ks, w); err != nil {
		return 0, err
	}
	if len(w.Overflows) > 0 {
		why := w.Overflows[0].Column
		if w.Repeated {
			why = op.RepeatedRefusal(w.Rows[1])
		}
		return 0, refusal(op, why)
	}
	return w.Rows[1], nil
}

// boardWith returns a board that includes every write acknowledged before the call. If the channel
// or dot of the name is missing, boardWith first creates it by an op of the given kind, and returns
// the token of that write. The write has no identity, because a repeat changes nothing.
func (n *Numbers) boardWith(creates board.OpKind, name string, of *shard.Write) (*board.View, shard.Token, error) {
	view, err := n.boardNow(of.Deadline)
	if err != nil {
		return nil, shard.Token{}, err
	}
	_, channel := view.Channels[name]
	_, dot := view.Dots[name]
	if channel && creates == board.MakeChannel || dot && creates == board.MakeDot {
		return view, shard.Token{}, nil
	}
	w := shard.Write{Deadline: of.Deadline, Permission: of.Permission}
	if _, err := n.writeBoard(&w, &board.Op{Kind: creates, Name: name}); err != nil {
		return nil, shard.Token{}, err
	}
	view, err = n.boardNow(of.Deadline)
	return view, w.Token, err
}

// refusal returns the error for an op that the board refused.
func refusal(op *board.Op, why board.Refusal) error {
	switch {
	case op.Kind == board.Retract && why == board.RefusedMissing:
		return ErrNoNotice
	case op.Kind == board.Retract:
		return &shard.ArgumentError{Field: "seq", Problem: fmt.Sprintf("%d notices of the channel are retracted behind one that is not, the most there may be", board.RetractedMax)}
	case op.Kind == board.Publish || op.Kind == board.MakeChannel:
		return &shard.ArgumentError{Field: "channel", Problem: fmt.Sprintf("there is no such channel yet, and there are %d channels and dots, the most there may be", NamesMax)}
	}
	return &shard.ArgumentError{Field: "name", Problem: fmt.Sprintf("there is no such dot yet, and there are %d channels and dots, the most there may be", NamesMax)}
}

// Board returns the channels and dots. The caller must not change them.
func (n *Numbers) Board(opt *shard.ReadOptions) (*board.View, error) { return n.board(opt) }
