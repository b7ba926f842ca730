package unread

import (
	"encoding/json"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
)

// BoardMachine is the state machine of the board's only shard. It is small, and every node has a replica.
type BoardMachine struct {
	raftfsm.Base
	current atomic.Pointer[boardContents] // Restore replaces the contents
}

// NewBoard returns a board before its first entry.
func NewBoard() *BoardMachine {
	b := &BoardMachine{}
	b.Init(codec.KindBoard, func() raftfsm.Contents { return newBoardContents() }, func(held raftfsm.Contents) { b.current.Store(held.(*boardContents)) })
	return b
}

// View returns the current board.
func (b *BoardMachine) View() *BoardView { return b.current.Load().view.Load() }

// Bytes implements Machine.
func (b *BoardMachine) Bytes() uint64 { return b.current.Load().Stats().Bytes }

// SnapshotBytes implements Machine.
func (b *BoardMachine) SnapshotBytes() uint64 { return b.Bytes() }

type boardContents struct {
	raftfsm.InMemory
	// An op that changes the board stores a new view.
	view    atomic.Pointer[BoardView]
	sum     uint64    // digest of the view
	answers []answer  // the newest answers, oldest first
	ops     []BoardOp // the ops of the entry being applied
}

// answer is the remembered answer to a request with an identity. So a repeat of the request returns
// the number of its own notice instead of that of a later notice, or its own refusal
// (refusedValue).
type answer struct {
	ID    answerID `json:"id"`
	Value int64    `json:"value"`
}

// answersMax bounds the remembered answers. A repeat whose answer was dropped returns the current
// value instead.
const answersMax = 1024

func newBoardContents() *boardContents {
	b := &boardContents{}
	b.view.Store((&BoardView{}).clone())
	return b
}

func (b *boardContents) Begin() { b.ops = b.ops[:0] }

func (b *boardContents) Decode(id *dedup.RequestID, p []byte, _ bool) (int, error) {
	answer := answerID(id.Hash())
	return raftfsm.ParseOps(p, func(p []byte) ([]byte, error) {
		op, rest, err := parseOp(p)
		op.id, op.forget = answer, id.ForgetsClients()
		b.ops = append(b.ops, op)
		return rest, err
	})
}

func (b *boardContents) Void(ops int) {
	for i := len(b.ops) - ops; i < len(b.ops); i++ {
		b.ops[i].void = true
	}
}

func (b *boardContents) Apply(_ int64, _ bool, r *raftfsm.Result) error {
	for i := range b.ops {
		op := &b.ops[i]
		if why, ok := b.change(op); !ok {
			r.Overflows = append(r.Overflows, engine.Overflow{Op: i, Column: why})
		}
		number, value := b.answer(op)
		copy(r.Rows[i*r.Width:(i+1)*r.Width], []int64{number, value})
	}
	return nil
}

// answer returns the result row of an op that was just applied.
func (b *boardContents) answer(op *BoardOp) (number, value int64) {
	v := b.view.Load()
	if c, ok := v.Channels[op.Name]; ok && op.onChannel() {
		number, value = int64(c.Number), c.Latest
	} else if d, ok := v.Dots[op.Name]; ok && !op.onChannel() {
		number, value = int64(d.Number), d.Fired
	}
	if op.void && op.id != (answerID{}) {
		for _, a := range slices.Backward(b.answers) { // begin with the newest, because a key may have two answers
			if a.ID == op.id {
				value = a.Value
				break
			}
		}
	}
	return number, value
}

func (op *BoardOp) onChannel() bool {
	switch op.Kind {
	case Publish, Retract, PutChannel, MakeChannel:
		return true
	}
	return false
}

// change applies an op to a copy of the view. If it refuses the op, it returns why and
// false.
func (b *boardContents) change(op *BoardOp) (why BoardRefusal, ok bool) {
	if op.void {
		return 0, true
	}
	was := b.view.Load()
	next := was.clone()
	switch op.Kind {
	case Retract:
		why, ok = next.retract(op)
	case Publish, MakeChannel:
		why, ok = next.publish(op)
	case Fire, SetDot, MakeDot:
		why, ok = next.fire(op)
	case PutChannel:
		next.Channels[op.Name] = *op.Channel
		why, ok = RefusedFull, next.check() == nil
	case PutDot:
		next.Dots[op.Name] = *op.Dot
		why, ok = RefusedFull, next.check() == nil
	case Clear:
		next, ok = (&BoardView{}).clone(), true
	}
	if !ok {
		b.remember(op, refusedValue(why))
		return why, false
	}
	b.view.Store(next)
	if b.sum += next.part(op) - was.part(op); op.Kind == Clear {
		b.sum = 0
	}
	if op.forget {
		b.answers = nil // the request memory also forgets the requests of these answers
	}
	if op.Kind == Publish || op.Kind == Fire {
		_, value := b.answer(op)
		b.remember(op, value)
	}
	return 0, true
}

// part returns the digest of the op's channel or dot, or 0 if there is none.
func (v *BoardView) part(op *BoardOp) uint64 {
	if c, ok := v.Channels[op.Name]; ok && op.onChannel() {
		return c.digest(op.Name)
	}
	if d, ok := v.Dots[op.Name]; ok && !op.onChannel() {
		return d.digest(op.Name)
	}
	return 0
}

// remember stores the answer of an op, unless its request has no identity.
func (b *boardContents) remember(op *BoardOp, value int64) {
	if op.id == (answerID{}) {
		return
	}
	if len(b.answers) == answersMax {
		b.answers = b.answers[1:]
	}
	b.answers = append(b.answers, answer{op.id, value})
}

func (v *BoardView) publish(op *BoardOp) (BoardRefusal, bool) {
	c, there := v.Channels[op.Name]
	if !there {
		if c.Number = v.number(); c.Number == 0 {
			return RefusedFull, false
		}
	}
	if op.Kind == Publish {
		c.Latest++
	}
	v.Channels[op.Name] = c
	return 0, true
}

func (v *BoardView) retract(op *BoardOp) (BoardRefusal, bool) {
	c, there := v.Channels[op.Name]
	at, retracted := slices.BinarySearch(c.Retracted, op.Seq)
	switch {
	case !there || op.Seq < 1 || op.Seq > c.Latest:
		return RefusedMissing, false
	case retracted || op.Seq <= c.Floor:
		return 0, true
	case len(c.Retracted) >= RetractedMax && op.Seq != c.Floor+1:
		return RefusedFull, false
	}
	c.Retracted = slices.Concat(c.Retracted[:at], []int64{op.Seq}, c.Retracted[at:]) // copy, because other views share the previous list
	for len(c.Retracted) > 0 && c.Retracted[0] == c.Floor+1 {
		c.Retracted = c.Retracted[1:]
		c.Floor++
	}
	v.Channels[op.Name] = c
	return 0, true
}

func (v *BoardView) fire(op *BoardOp) (BoardRefusal, bool) {
	d, there := v.Dots[op.Name]
	if !there {
		d.NewUsers = true
		if d.Number = v.number(); d.Number == 0 {
			return RefusedFull, false
		}
	}
	switch op.Kind {
	case Fire:
		d.Fired++
	case SetDot:
		d.NewUsers = op.NewUsers
	}
	v.Dots[op.Name] = d
	return 0, true
}

func (b *boardContents) Digest() uint64 { return b.sum }

func (b *boardContents) Stats() engine.Stats {
	v := b.view.Load()
	bytes := uint64(0)
	for name, c := range v.Channels {
		bytes += uint64(len(name) + 8*len(c.Retracted) + 64)
	}
	for name := range v.Dots {
		bytes += uint64(len(name) + 64)
	}
	return engine.Stats{Rows: uint64(v.names()), Segments: 1, Bytes: bytes}
}

type boardCaptured struct {
	raftfsm.InMemory
	BoardView
	Answers []answer `json:"answers"`

	sum uint64
}

func (b *boardContents) Capture() raftfsm.Captured {
	return &boardCaptured{BoardView: *b.view.Load(), Answers: append([]answer{}, b.answers...), sum: b.sum}
}

func (s *boardCaptured) Write(w *codec.StreamWriter) error {
	body, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("cannot encode the board: %w", err)
	}
	return w.Section(codec.StreamBoard, func(b []byte) []byte { return append(b, body...) })
}

func (s *boardCaptured) Rows() uint64   { return uint64(s.names()) }
func (s *boardCaptured) Digest() uint64 { return s.sum }
func (s *boardCaptured) Release()       {}

func (b *boardContents) Load(_ *codec.StreamReader, kind byte, p []byte) error {
	if kind != codec.StreamBoard {
		return raftfsm.Misplaced(kind)
	}
	s, err := parseSnapshot(p)
	if err != nil {
		return err
	}
	b.answers = s.Answers
	b.view.Store(s.clone())
	b.sum = s.BoardView.digest()
	return nil
}

func parseSnapshot(p []byte) (*boardCaptured, error) {
	s := &boardCaptured{}
	err := codec.DecodeJSON(p, s)
	if err == nil {
		err = s.check()
	}
	if err == nil && len(s.Answers) > answersMax {
		err = fmt.Errorf("%d answers", len(s.Answers))
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", codec.ErrSnapshot, err)
	}
	return s, nil
}
