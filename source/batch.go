package source

import (
	"context"
	"errors"
	"fmt"
	"sort"

	"github.com/countd/countd/source/sink"
)

// batch holds messages while a session checks and refuses them. Their ops are in decoder.Ops.
type batch struct {
	*session
	messages []Message
	next     Position
	bad      map[int]string // index of the message → reason why the whole message is refused
	alone    map[int]string // index of the op → reason why only this op is refused
	passed   map[int]bool   // index of the op → its shard has passed the message
	stop     error          // the reason why the partition stops at position next, or nil
}

// flush applies the waiting messages. If a message stops the partition, flush applies only the
// messages before that message.
func (s *session) flush(ctx context.Context) error {
	if len(s.waiting) == 0 {
		return nil
	}
	b := &batch{session: s, messages: s.waiting, next: s.next, bad: map[int]string{}, alone: map[int]string{}, passed: map[int]bool{}}
	b.decode()
	if err := b.check(ctx); err != nil {
		return err
	}
	if err := b.refuse(ctx); err != nil {
		return err
	}
	if err := s.apply(ctx, sink.Batch{Next: b.next, Ops: s.decoder.Ops}, b.messages); err != nil {
		return err
	}
	s.status.applied(len(b.messages) - len(b.bad))
	if n := len(b.messages); n > 0 {
		s.status.setPosition(s.at, b.messages[n-1].Time)
	}
	s.status.set(func() { s.status.mu.waiting = int64(len(s.waiting) - len(b.messages)) }) // after a stop, the next session fetches the omitted messages again
	clear(s.waiting)                                                                       // release the messages' bytes
	s.waiting, s.waitingBytes = s.waiting[:0], 0
	if b.stop == nil {
		s.status.running()
	}
	return b.stop
}

// decode decodes the messages. If a message stalls the partition, decode ends the batch before that
// message.
func (b *batch) decode() {
	b.decoder.Reset()
	for i := range b.messages {
		m := &b.messages[i]
		err := b.decoder.Decode(m)
		if stalled, is := errors.AsType[*StalledError](err); is {
			b.end(i, Stalled("message at position %s: %s", m.Position, stalled.Reason))
			return
		}
		if err != nil {
			b.bad[i] = err.Error()
		}
		if of, is := b.decided.refused[m.Position]; is {
			b.bad[i] = of.reason
		}
	}
}

// end ends the batch before message i.
func (b *batch) end(i int, why error) {
	b.next, b.messages, b.stop = b.messages[i].Position, b.messages[:i], why
	for op := range b.decoder.Ops {
		if !b.decoder.Ops[op].Position.Less(b.next) {
			b.decoder.Ops = b.decoder.Ops[:op]
			break
		}
	}
}

// check finds the ops that their shards would refuse.
//
// check refuses the whole message of such an op, with one exception: an earlier try may have
// accepted the message, and applied its other ops. Then check refuses only this op, or nothing if
// the op's shard has already passed the message. If on-error is stop, check instead ends the batch
// before the first bad message.
func (b *batch) check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, b.times.call)
	defer cancel()
	rejected, err := b.cfg.Sink.Check(ctx, &sink.Batch{Source: b.cfg.Number, Partition: b.cfg.Partition, From: b.at, Next: b.next, Ops: b.decoder.Ops})
	if err != nil {
		return wrap("check a batch", err)
	}
	stops := b.cfg.Source.OnError == OnErrorStop
	for _, r := range rejected {
		p := b.decoder.Ops[r.Op].Position
		i := messageOf(b.messages, p)
		switch taken := b.decided.has(p) && b.bad[i] == ""; {
		case taken && r.Passed:
			b.passed[r.Op] = true
		case taken && !stops:
			b.alone[r.Op] = r.Reason
		case b.bad[i] == "":
			b.bad[i] = r.Reason
		}
	}
	if !stops || len(b.bad) == 0 {
		return nil
	}
	first := len(b.messages)
	for i := range b.bad {
		first = min(first, i)
	}
	b.end(first, Stalled("message at position %s: %v; on-error is stop", b.messages[first].Position, b.bad[first]))
	clear(b.bad)
	return nil
}

// messageOf returns the index of the message at a position, or -1.
func messageOf(messages []Message, p Position) int {
	if i := firstFrom(messages, p); i < len(messages) && messages[i].Position == p {
		return i
	}
	return -1
}

// firstFrom returns the index of the first message at or above a position, or len(messages).
func firstFrom(messages []Message, p Position) int {
	return sort.Search(len(messages), func(i int) bool { return !messages[i].Position.Less(p) })
}

// refuse removes the refused ops from the batch. If the source has dead letters, refuse writes
// them before the position passes the messages.
func (b *batch) refuse(ctx context.Context) error {
	if len(b.bad)+len(b.alone)+len(b.passed) == 0 {
		return nil
	}
	var letters []Letter
	var refused []*refusal
	for i := range b.messages {
		reason, is := b.bad[i]
		if !is {
			continue
		}
		of := b.decided.refused[b.messages[i].Position]
		if of == nil { // remember the refusal before sending the dead letter, because the answer may be lost
			if b.behind != "" && len(b.decided.refused) >= refusedMax {
				return fmt.Errorf("cannot refuse more than %d messages until all shards have passed them: %s", refusedMax, b.behind)
			}
			of = &refusal{reason: reason}
			b.decided.refused[b.messages[i].Position] = of
		}
		if !of.written {
			refused = append(refused, of)
			letters = append(letters, b.letter(&b.messages[i], reason))
		}
	}
	kept := b.decoder.Ops[:0]
	for n, op := range b.decoder.Ops {
		i := messageOf(b.messages, op.Position)
		_, bad := b.bad[i]
		reason, alone := b.alone[n]
		switch {
		case bad || b.passed[n]:
		case alone:
			l := b.letter(&b.messages[i], reason)
			l.Op = opJSON(&op)
			letters = append(letters, l)
		default:
			kept = append(kept, op)
		}
	}
	b.decoder.Ops = kept
	countAgain(letters)
	if b.cfg.Source.OnError == OnErrorDeadLetter && len(letters) > 0 {
		if err := b.send(ctx, letters); err != nil {
			return err
		}
	}
	for _, of := range refused {
		of.written = true
	}
	b.reject(letters)
	return nil
}

func (s *session) letter(m *Message, reason string) Letter {
	return Letter{
		Source:    s.cfg.Source.Name,
		Partition: s.cfg.Partition,
		Position:  m.Position,
		Reason:    reason,
		Value:     m.Value,
		number:    s.cfg.Number,
		queue:     s.start.Identity,
		mark:      MarkOf(m),
	}
}

func (s *session) send(ctx context.Context, letters []Letter) error {
	ctx, cancel := context.WithTimeout(ctx, s.times.call)
	defer cancel()
	return s.brokerError("write the dead letters", s.cfg.Broker.DeadLetter(ctx, letters))
}

// lateRejections counts ops that Sink.Check accepted but a shard refused, because a sum overflows.
// It writes their dead letters unless on-error is skip, and stalls the source if on-error is stop.
// The shard's position has passed these ops already.
func (s *session) lateRejections(ctx context.Context, ops []sink.Op, messages []Message, rejected []sink.Rejection) error {
	if len(rejected) == 0 {
		return nil
	}
	letters := make([]Letter, 0, len(rejected))
	for _, r := range rejected {
		op := &ops[r.Op]
		if at := messageOf(messages, op.Position); at >= 0 {
			l := s.letter(&messages[at], r.Reason)
			l.Op = opJSON(op)
			letters = append(letters, l)
		}
	}
	countAgain(letters)
	s.reject(letters)
	if s.cfg.Source.OnError == OnErrorSkip {
		return nil
	}
	if err := s.send(ctx, letters); err != nil {
		s.cfg.Logger.Error("ops were not applied, and their dead letters not written", "source", s.cfg.Source.Name,
			"partition", s.cfg.Partition, "ops", len(letters), "first", letters[0].Op, "reason", letters[0].Reason, "err", err)
		return err
	}
	if s.cfg.Source.OnError == OnErrorStop {
		return Stalled("op at position %s: %s; on-error is stop", letters[0].Position, letters[0].Reason)
	}
	return nil
}
