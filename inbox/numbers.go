// Package inbox computes users' unread numbers and timelines from the data of shards: notices of
// channels, red dots, and new posts of followees. It also changes that data: cursors, feeds,
// groups, outboxes and the board. It keeps no state. It never writes an event to each of its users:
// it stores a post once for its author, and a notice once for all users.
//
// Invariants: the package computes the new value of a user's cursor before it proposes the value,
// from reads that see every acknowledged write. So all replicas store the same value. A page of a
// timeline contains each post between the cursor and the page's last post once, if the post existed
// throughout the read and its shard was readable. The page names the shards that could not be read.
package inbox

import (
	"errors"
	"fmt"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/feed"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/raftfsm/rows"
	"github.com/countd/countd/raftfsm/unread"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/shard/errs"
)

// FolloweesMax bounds the followees of one user.
const FolloweesMax = feed.FolloweesMax

// NamesMax bounds the channels and dots of a cluster together.
const NamesMax = unread.CursorsMax

// ErrNoNotice is returned by Retract for a notice that was never published.
var ErrNoNotice = errors.New("no such notice")

// Node has the methods of a node that this package calls. *shard.Node implements and documents
// them.
type Node interface {
	Keyspace(name string) *shard.Keyspace
	Holds(ks *shard.Keyspace) bool
	Read(ks *shard.Keyspace, q raftfsm.Query, ids []uint64, opt *shard.ReadOptions) error
	Write(ks *shard.Keyspace, w *shard.Write) error
}

// Numbers reads and changes the unread numbers of all users. Any goroutine may call its methods.
//
// The caller of a write passes a shard.Write with the identity and the deadline of the request. The
// method sets Duplicate and Token of the shard.Write. The caller must not use the shard.Write until
// the method returns. Methods return errors of package shard and of this package.
type Numbers struct{ node Node }

// NewNumbers returns the Numbers of a node.
func NewNumbers(node Node) *Numbers { return &Numbers{node} }

// keyspace returns the keyspace with that name and kind.
func (n *Numbers) keyspace(name, kind string) (*shard.Keyspace, error) {
	ks := n.node.Keyspace(name)
	if ks == nil || ks.Kind != kind {
		return nil, fmt.Errorf("%w: %s; the cluster version is not high enough yet", errs.ErrUnknownKeyspace, name)
	}
	return ks, nil
}

// read runs a query in the keyspace with that name and kind.
func (n *Numbers) read(name, kind string, q raftfsm.Query, ids []uint64, opt *shard.ReadOptions) error {
	ks, err := n.keyspace(name, kind)
	if err != nil {
		return err
	}
	return n.node.Read(ks, q, ids, opt)
}

// board returns the channels and dots. The caller must not change the result.
func (n *Numbers) board(opt *shard.ReadOptions) (*unread.BoardView, error) {
	var q unread.BoardQuery
	err := n.readBoard(&q, opt)
	return q.View, err
}

func (n *Numbers) readBoard(q *unread.BoardQuery, opt *shard.ReadOptions) error {
	return n.read(kinds.KeyspaceBoard, kinds.Board, q, nil, opt)
}

// cursors returns the first width columns of the row of a user's cursors.
func (n *Numbers) cursors(user uint64, width int, opt *shard.ReadOptions) ([]int64, error) {
	q := rows.Query{Table: unread.Cursors, Width: width, Rows: make([]int64, width)}
	return q.Rows, n.read(kinds.KeyspaceUnread, kinds.Unread, &q, []uint64{user}, opt)
}

// writeUser writes one op on one user. It returns the first width columns of the row after the op.
func (n *Numbers) writeUser(w *shard.Write, op raftfsm.Ops, width int) ([]int64, error) {
	ks, err := n.keyspace(kinds.KeyspaceUnread, kinds.Unread)
	if err != nil {
		return nil, err
	}
	w.Ops, w.Width = op, width
	w.Rows = make([]int64, width)
	return w.Rows, n.node.Write(ks, w)
}

// touch writes an op without effect to a user. So the shard remembers the identity of a request
// that moves no cursor, and a repeat of the request moves no cursor either.
func (n *Numbers) touch(w *shard.Write, user uint64) error {
	_, err := n.writeUser(w, counters.Ops{{ID: user, Kind: engine.OpAdd, Cells: []engine.Cell{{}}}}, 1)
	return err
}

// move moves one cursor of a user, and returns the row up to the cursor's column. It adds
// creation, the token of the write that created the channel or dot, to w.Token.
func (n *Numbers) move(w *shard.Write, user uint64, kind engine.OpKind, number uint8, seq int64, creation shard.Token) ([]int64, error) {
	op := unread.CursorOps{{ID: user, Kind: kind, Cells: []engine.Cell{{Column: number, Value: seq + 1}}}}
	row, err := n.writeUser(w, op, int(number)+1)
	w.Token.At = append(w.Token.At, creation.At...)
	return row, err
}

// writeBoard writes one op on the board. It returns the number of the channel's last notice, or
// how often the dot was fired. For a repeated request it returns the value of the first answer.
func (n *Numbers) writeBoard(w *shard.Write, op *unread.BoardOp) (value int64, err error) {
	ks, err := n.keyspace(kinds.KeyspaceBoard, kinds.Board)
	if err != nil {
		return 0, err
	}
	w.Ops, w.Width = op, 2
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

// boardWith returns a board that includes every write acknowledged before the call. If the board
// has no channel or dot with the given name, boardWith first creates it by an op of the kind in the
// argument creates. It then returns the token of this write. The write has no identity, because
// repeating it changes nothing.
func (n *Numbers) boardWith(creates unread.BoardOpKind, name string, of *shard.Write) (*unread.BoardView, shard.Token, error) {
	view, err := n.board(now(of))
	if err != nil {
		return nil, shard.Token{}, err
	}
	_, channel := view.Channels[name]
	_, dot := view.Dots[name]
	if channel && creates == unread.MakeChannel || dot && creates == unread.MakeDot {
		return view, shard.Token{}, nil
	}
	w := shard.Write{Deadline: of.Deadline, Permission: of.Permission}
	if _, err := n.writeBoard(&w, &unread.BoardOp{Kind: creates, Name: name}); err != nil {
		return nil, shard.Token{}, err
	}
	view, err = n.board(now(of))
	return view, w.Token, err
}

// refusal returns the error for an op that the board refused.
func refusal(op *unread.BoardOp, why unread.BoardRefusal) error {
	switch {
	case op.Kind == unread.Retract && why == unread.RefusedMissing:
		return ErrNoNotice
	case op.Kind == unread.Retract:
		return &errs.ArgumentError{Field: "seq", Problem: fmt.Sprintf("%d notices of the channel are retracted behind one that is not, the most there may be", unread.RetractedMax)}
	case op.Kind == unread.Publish || op.Kind == unread.MakeChannel:
		return &errs.ArgumentError{Field: "channel", Problem: fmt.Sprintf("there is no such channel yet, and there are %d channels and dots, the most there may be", NamesMax)}
	}
	return &errs.ArgumentError{Field: "name", Problem: fmt.Sprintf("there is no such dot yet, and there are %d channels and dots, the most there may be", NamesMax)}
}
