package sources

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/countd/countd/internal/strictjson"
	"github.com/countd/countd/names"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/source/sink"
)

// textIDs has Names of the keyspaces whose ids are texts, by their names.
type textIDs map[string]string

func textIDsOf(keyspaces []*shard.Keyspace) textIDs {
	t := textIDs{}
	for _, k := range keyspaces {
		if k.Names != "" {
			t[k.Name] = k.Names
		}
	}
	return t
}

// whyBad returns why the ids of an op do not fit their keyspaces, or "".
func (t textIDs) whyBad(op *sink.Op) string {
	of := op.Texts
	if of == nil {
		return ""
	}
	if problem := whyBadID(t[op.Keyspace], of.ID, of.IDNumber); problem != "" {
		return of.IDAt + ": " + problem
	}
	if problem := whyBadID(t[kinds.KeyspaceUsers], of.Member, of.MemberNumber); problem != "" {
		return of.MemberAt + ": " + problem
	}
	return ""
}

// whyBadID returns why a text is no id of a keyspace with Names space, or "". text is "" for plain digits.
func whyBadID(space, text string, number bool) string {
	if text == "" || space == "" && number || space != "" && names.Valid([]byte(text)) {
		return ""
	}
	return names.Problem(space)
}

// idOf returns the id of an op as its message has it.
func (t textIDs) idOf(op *sink.Op) string {
	if op.Texts != nil && (t[op.Keyspace] != "" || !op.Texts.IDNumber) {
		return cmp.Or(op.Texts.ID, strconv.FormatUint(op.ID, 10))
	}
	return strconv.FormatUint(op.ID, 10)
}

// rowIDs returns the numbers of ids of a keyspace, 0 for a text without one.
func (s *Sink) rowIDs(ctx context.Context, ks *shard.Keyspace, ids []string) ([]uint64, error) {
	numbers := make([]uint64, len(ids))
	for i, id := range ids {
		ok := names.Valid([]byte(id))
		if ks.Names == "" {
			numbers[i], ok = strictjson.ParseUint64([]byte(id))
		}
		if !ok {
			return nil, &errs.ArgumentError{Field: fmt.Sprintf("ids[%d]", i), Problem: names.Problem(ks.Names)}
		}
	}
	if ks.Names == "" || len(ids) == 0 {
		return numbers, nil
	}
	opt := shard.ReadOptions{Consistency: shard.Linearizable, Deadline: deadlineOf(ctx)}
	return numbers, s.names.Find(ks.Names, ids, numbers, &opt)
}

// deadlineOf returns the deadline of ctx, or that of a write without one.
func deadlineOf(ctx context.Context) time.Time {
	if deadline, has := ctx.Deadline(); has {
		return deadline
	}
	return time.Now().Add(writeTimeout)
}

// numbers looks up the numbers of the texts of ops, all together.
type numbers struct {
	names   *names.Names
	use     names.Use
	request names.Request
	late    []lateNumber
}

// lateNumber is a part of an op that waits for its number.
type lateNumber struct {
	text *names.Text
	set  func(number uint64)
}

// number puts the numbers of texts into ops. A text without a number gets one if assign is set, and
// has 0 otherwise. number returns ErrMoved if ids do not fit their keyspaces: they did when Check was called.
func (s *Sink) number(ctx context.Context, t textIDs, ops []*sink.Op, assign bool) error {
	n := numbers{names: s.names, use: names.Reads}
	if assign {
		n.use = names.Adds
	}
	for _, op := range ops {
		if why := t.whyBad(op); why != "" {
			return fmt.Errorf("%w: keyspace %s: %s", sink.ErrMoved, op.Keyspace, why)
		}
		space, members := t[op.Keyspace], ""
		if op.Kind.OfMember() {
			members = t[kinds.KeyspaceUsers]
		}
		if space == "" && members == "" {
			continue
		}
		if op.Texts == nil {
			op.Texts = &sink.Texts{}
		}
		if space != "" {
			op.Texts.ID, op.Texts.IDNumber = cmp.Or(op.Texts.ID, strconv.FormatUint(op.ID, 10)), false
			n.put(space, op.Texts.ID, func(number uint64) { op.ID = number })
		}
		if members != "" {
			op.Texts.Member, op.Texts.MemberNumber = cmp.Or(op.Texts.Member, strconv.FormatUint(uint64(op.Cells[0].Value), 10)), false
			n.put(members, op.Texts.Member, func(number uint64) { op.Cells[0].Value = int64(number) })
		}
	}
	return n.settle(ctx)
}

// put calls set with the number of a text, if not now then in settle.
func (n *numbers) put(space, text string, set func(number uint64)) {
	number, late := n.request.Number(n.names, space, []byte(text))
	if set(number); late != nil {
		late.Use = n.use
		n.late = append(n.late, lateNumber{late, set})
	}
}

// settle looks up the numbers that are not in memory.
func (n *numbers) settle(ctx context.Context) error {
	if len(n.late) == 0 {
		return nil
	}
	deadline := deadlineOf(ctx)
	texts := make([]*names.Text, len(n.late))
	for i, l := range n.late {
		texts[i] = l.text
	}
	n.names.Settle(texts, &shard.ReadOptions{Consistency: shard.Linearizable, Deadline: deadline}, &shard.Write{Deadline: deadline}, func(calls int, run func(int)) {
		for i := range calls {
			run(i)
		}
	})
	for _, l := range n.late {
		if l.text.Err != nil {
			return fmt.Errorf("cannot find the numbers of ids: %w", movedOr(l.text.Err))
		}
		l.set(l.text.Number)
	}
	return nil
}
