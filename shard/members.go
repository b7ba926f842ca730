package shard

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/shard/wire"
)

// MemberReads reads the sets of members of counter keyspaces. Ids, members and columns
// are as in a Write.
type MemberReads interface {
	// Check fills in, len(ids) values: whether the member is in the set of each id.
	Check(ks *Keyspace, column int, member uint64, ids []uint64, opt *ReadOptions, in []bool) error
	// List returns a page of the members of a row, newest first.
	List(ks *Keyspace, column int, id uint64, page members.Page, opt *ReadOptions) (members.List, error)
	// Of returns a page of the rows that a member is in, newest first.
	Of(ks *Keyspace, column int, member uint64, page members.Page, opt *ReadOptions) (members.List, error)
}

// Members returns what reads sets of members.
func (n *Node) Members() MemberReads { return memberReads{&n.reader} }

// memberReads reads sets: each shard's part from one replica that may answer, as rows are.
type memberReads struct {
	*reader
}

// membersReadMax bounds the keys of one read, and the entries of one page.
const membersReadMax = readKeysMax

// The forms of a read of sets.
const (
	membersCheck = iota // whether the member of is in the set of each key
	membersList         // the members of row of
	membersOf           // the rows of member of
	membersForms
)

// memberRead is a read of the sets of one shard.
type memberRead struct {
	form   byte
	column uint8
	of     uint64
	keys   []uint64 // of a check
	page   members.Page
}

// memberAnswer answers a memberRead: in of a check, else list.
type memberAnswer struct {
	in   []bool
	list members.List
}

// Check implements MemberReads.
func (m memberReads) Check(ks *Keyspace, column int, member uint64, ids []uint64, opt *ReadOptions, in []bool) error {
	clear(in)
	groups, err := m.groupsToRead(ks, opt)
	if err != nil {
		return m.orUnknown(ks, err)
	}
	route := groups[0].route
	reads := make([]*memberRead, len(groups))
	places := make([][]int, len(groups))
	for i, id := range ids {
		s, key := route.KeyOf(id)
		if reads[s] == nil {
			reads[s] = &memberRead{form: membersCheck, column: uint8(column), of: member}
		}
		reads[s].keys, places[s] = append(reads[s].keys, key), append(places[s], i)
	}
	answers, err := m.each(ks, groups, reads, opt)
	for s := range places {
		for i, place := range places[s] {
			if err == nil {
				in[place] = answers[s].in[i]
			}
		}
	}
	return err
}

// List implements MemberReads.
func (m memberReads) List(ks *Keyspace, column int, id uint64, page members.Page, opt *ReadOptions) (members.List, error) {
	groups, err := m.groupsToRead(ks, opt)
	if err != nil {
		return members.List{}, m.orUnknown(ks, err)
	}
	s, key := groups[0].route.KeyOf(id)
	reads := make([]*memberRead, len(groups))
	reads[s] = &memberRead{form: membersList, column: uint8(column), of: key, page: page}
	answers, err := m.each(ks, groups, reads, opt)
	return answers[s].list, err
}

// Of implements MemberReads. It merges a page of each shard.
func (m memberReads) Of(ks *Keyspace, column int, member uint64, page members.Page, opt *ReadOptions) (members.List, error) {
	groups, err := m.groupsToRead(ks, opt)
	if err != nil {
		return members.List{}, m.orUnknown(ks, err)
	}
	route := groups[0].route
	reads := make([]*memberRead, len(groups))
	for s := range groups {
		of := page
		if page.Continues {
			key, above := route.FirstAbove(page.After.ID, s)
			if of.After.ID = key; !above { // no row of the shard is behind it, of the same stamp
				of.After = members.Entry{At: page.After.At - 1}
			}
		}
		reads[s] = &memberRead{form: membersOf, column: uint8(column), of: member, page: of}
	}
	answers, err := m.each(ks, groups, reads, opt)
	if err != nil {
		return members.List{}, err
	}
	var all members.List
	for s := range answers {
		for _, e := range answers[s].list.Entries {
			all.Entries = append(all.Entries, members.Entry{ID: route.IDOf(s, e.ID), At: e.At})
		}
		all.More = all.More || answers[s].list.More
	}
	slices.SortFunc(all.Entries, members.Entry.Compare)
	if len(all.Entries) > page.Limit {
		all.Entries, all.More = all.Entries[:page.Limit], true
	}
	return all, nil
}

// setParts are the reads of sets of one request, by shard, nil for none, and their answers.
type setParts struct {
	reads   []*memberRead
	answers []memberAnswer
}

// each reads the shards that have a read.
func (m memberReads) each(ks *Keyspace, groups []*shardReplica, reads []*memberRead, opt *ReadOptions) ([]memberAnswer, error) {
	parts := setParts{reads, make([]memberAnswer, len(groups))}
	if failed := m.readShards(&parts, groups, opt, time.Now()); failed != nil {
		return parts.answers, m.orUnknown(ks, errors.Join(failed.ByShard...))
	}
	return parts.answers, nil
}

// wants implements readParts.
func (p *setParts) wants(s int) bool { return p.reads[s] != nil }

// fromMemory implements readParts: the page cache of a set's store counts as memory.
func (p *setParts) fromMemory(s int, r *localReplica) bool {
	return r.members(p.reads[s], &p.answers[s]) == nil
}

// fetch implements readParts, for a shard that this node's replica cannot answer for now.
func (p *setParts) fetch(rd *reader, g *shardReplica, s int, _ *localReplica, opt *ReadOptions) error {
	q, a := p.reads[s], &p.answers[s]
	ctx, cancel := context.WithDeadline(context.Background(), opt.Deadline)
	defer cancel()
	return rd.ask(ctx, g, nil, opt, func(r *localReplica) error {
		return r.members(q, a)
	}, func(ctx context.Context, node string) error {
		answer, err := rd.calls.Call(ctx, node, methodMembers, q.appendTo(appendRead(nil, newRemoteRead(g, opt))))
		if err != nil {
			return err
		}
		return q.parse(answer, a)
	})
}

// members reads sets of this replica. The error is one for which another replica may be asked.
func (r *localReplica) members(q *memberRead, a *memberAnswer) (err error) {
	if r.counters == nil || r.counters.Members() == nil {
		return fmt.Errorf("%w: the shard has no members", ErrNoQuorum)
	}
	sets := r.counters.Members()
	switch q.form {
	case membersCheck:
		a.in = make([]bool, len(q.keys))
		err = sets.Contains(q.of, q.column, q.keys, a.in)
	case membersList:
		a.list, err = sets.Members(q.of, q.column, q.page)
	default:
		a.list, err = sets.Rows(q.of, q.column, q.page)
	}
	if err == nil {
		return nil
	}
	if errors.Is(err, members.ErrDamaged) {
		r.damage.Note(err)
	}
	return fmt.Errorf("%w: %w", ErrNoQuorum, err)
}

// appendTo appends the read, behind a read of the group: form, column, of, and the keys or the
// page.
func (q *memberRead) appendTo(dst []byte) []byte {
	dst = append(dst, q.form, q.column)
	dst = binary.LittleEndian.AppendUint64(dst, q.of)
	if q.form == membersCheck {
		dst = binary.AppendUvarint(dst, uint64(len(q.keys)))
		for _, key := range q.keys {
			dst = binary.LittleEndian.AppendUint64(dst, key)
		}
		return dst
	}
	dst = binary.AppendUvarint(dst, uint64(q.page.Limit))
	if !q.page.Continues {
		return append(dst, 0)
	}
	dst = binary.AppendUvarint(append(dst, 1), uint64(q.page.After.At))
	return binary.LittleEndian.AppendUint64(dst, q.page.After.ID)
}

func parseMemberRead(r *wire.Reader) *memberRead {
	q := &memberRead{form: r.Byte(), column: r.Byte(), of: r.Fixed64()}
	if q.form >= membersForms {
		r.Fail(fmt.Sprintf("form %d", q.form))
	}
	if q.form == membersCheck {
		q.keys = make([]uint64, r.Count(8))
		for i := range q.keys {
			q.keys[i] = r.Fixed64()
		}
		return q
	}
	q.page.Limit = int(r.UintTo(membersReadMax))
	if q.page.Continues = r.UintTo(1) == 1; q.page.Continues {
		q.page.After = members.Entry{At: members.Stamp(r.Uint()), ID: r.Fixed64()}
	}
	return q
}

// appendTo appends the answer of a read.
func (a *memberAnswer) appendTo(dst []byte, q *memberRead) []byte {
	if q.form == membersCheck {
		for _, in := range a.in {
			dst = append(dst, bit(in))
		}
		return dst
	}
	dst = binary.AppendUvarint(append(dst, bit(a.list.More)), uint64(len(a.list.Entries)))
	for _, e := range a.list.Entries {
		dst = binary.AppendUvarint(dst, uint64(e.At))
		dst = binary.LittleEndian.AppendUint64(dst, e.ID)
	}
	return dst
}

// parse reads what memberAnswer.appendTo wrote.
func (q *memberRead) parse(answer []byte, a *memberAnswer) error {
	r := wire.Reader{Rest: answer}
	if q.form == membersCheck {
		a.in = make([]bool, len(q.keys))
		for i := range a.in {
			a.in[i] = r.UintTo(1) == 1
		}
		return r.End()
	}
	a.list = members.List{More: r.UintTo(1) == 1}
	for range r.Count(9) {
		a.list.Entries = append(a.list.Entries, members.Entry{At: members.Stamp(r.Uint()), ID: r.Fixed64()})
	}
	return r.End()
}

// serveMembers reads sets for another node.
func (m memberReads) serveMembers(ctx context.Context, request []byte) ([]byte, error) {
	r := wire.Reader{Rest: request}
	of := parseRead(&r)
	q := parseMemberRead(&r)
	if err := r.End(); err != nil {
		return nil, err
	}
	rep, err := m.replicaFor(of, time.Now().Add(readWaitMax))
	if err != nil {
		return nil, err
	}
	var a memberAnswer
	if err := rep.members(q, &a); err != nil {
		return nil, err
	}
	return a.appendTo(nil, q), ctx.Err()
}
