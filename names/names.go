// Package names turns text ids into numbers, and numbers into texts, through one node. A keyspace
// whose ids are texts names the keyspace that gives its numbers: see shard.Keyspace.Names.
//
// It never invents a number, and never remembers that a text has none.
//
// Invariant: a pair of a text and a number comes from the log of the names keyspace. Such a pair
// holds until the text is erased, so every node may remember it for pairAgeMax.
package names

import (
	"errors"
	"fmt"
	"time"

	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/names"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/shard/errs"
)

// BytesMax bounds the bytes of a text.
const BytesMax = names.BytesMax

// Rule is the error for a text that Valid refuses.
var Rule = fmt.Sprintf("not a text of 1 to %d bytes of UTF-8", BytesMax)

// Valid reports whether a text may be an id: valid UTF-8 of 1 to BytesMax bytes.
func Valid(text []byte) bool { return names.Valid(text) }

// Node has the methods of a node that this package calls. *shard.Node implements and documents
// them.
type Node interface {
	Keyspace(name string) *shard.Keyspace
	Read(ks *shard.Keyspace, q raftfsm.Query, ids []uint64, opt *shard.ReadOptions) error
	Write(ks *shard.Keyspace, w *shard.Write) error
}

// Names turns text ids into numbers and back, through one node. It is safe for concurrent use.
//
// The argument space of its methods is shard.Keyspace.Names. They return errors of package shard.
type Names struct {
	node  Node
	cache cache
}

// New returns the Names of a node.
func New(node Node) *Names {
	n := &Names{node: node}
	n.cache.now = time.Now
	return n
}

// Cached returns the number of a text from memory, without a read.
func (n *Names) Cached(space string, text []byte) (number uint64, ok bool) {
	return n.cache.number(n.group(space), text, n.cache.since())
}

// Find sets numbers[i] to the number of texts[i], or to 0 for an unknown text. A linearizable read,
// and a read with a token, knows each text whose Assign was acknowledged before, because such reads
// ask the leader for a text that this node does not know.
func (n *Names) Find(space string, texts []string, numbers []uint64, opt *shard.ReadOptions) error {
	ks, err := n.keyspace(space)
	if err != nil {
		return err
	}
	unknown := n.cache.numbers(ks.FirstGroup, texts, numbers)
	for _, opt := range rounds(opt) {
		if unknown, err = n.find(ks, texts, numbers, unknown, opt); err != nil {
			return err
		}
	}
	return nil
}

// rounds returns the options of the reads after which a text may count as unknown. A pair that any
// replica knows is right, so the first read asks the nearest replica. The second one, if any, needs
// to ask only for the rest.
func rounds(opt *shard.ReadOptions) []*shard.ReadOptions {
	if opt.Consistency != shard.Linearizable && len(opt.Token.At) == 0 {
		return []*shard.ReadOptions{opt}
	}
	return []*shard.ReadOptions{stale(opt.Deadline), latest(opt.Deadline)}
}

func stale(deadline time.Time) *shard.ReadOptions {
	return &shard.ReadOptions{Consistency: shard.Stale, Deadline: deadline}
}

func latest(deadline time.Time) *shard.ReadOptions {
	return &shard.ReadOptions{Consistency: shard.Linearizable, Deadline: deadline}
}

// find reads the numbers of the texts with the indexes unknown, and returns the indexes of those that
// are still unknown.
func (n *Names) find(ks *shard.Keyspace, texts []string, numbers []uint64, unknown []int, opt *shard.ReadOptions) (rest []int, err error) {
	for len(unknown) > 0 {
		some := unknown[:min(len(unknown), raftfsm.ReadKeysMax)]
		unknown = unknown[len(some):]
		q := names.NumbersQuery{Texts: pick(texts, some)}
		if err := n.node.Read(ks, &q, nil, opt); err != nil {
			return nil, err
		}
		n.cache.keep(ks.FirstGroup, q.Texts, q.Numbers)
		for i, at := range some {
			if numbers[at] = q.Numbers[i]; numbers[at] == 0 {
				rest = append(rest, at)
			}
		}
	}
	return rest, nil
}

// assignsMax bounds the texts of one log entry.
const assignsMax = 1000

// Assign sets numbers[i] to the number of texts[i], and gives a number to each unknown text. It reads
// only Deadline and Permission of w, and does not change w. After an error, some of the texts may have
// got numbers. That does no harm: another call gives the same ones.
func (n *Names) Assign(space string, texts []string, numbers []uint64, w *shard.Write) error {
	ks, err := n.keyspace(space)
	if err != nil {
		return err
	}
	unknown := n.cache.numbers(ks.FirstGroup, texts, numbers)
	if unknown, err = n.find(ks, texts, numbers, unknown, stale(w.Deadline)); err != nil {
		return err
	}
	for _, i := range unknown {
		if !names.Valid(texts[i]) {
			return &errs.ArgumentError{Field: "id", Problem: Rule}
		}
	}
	ops, at := opsOf(texts, unknown)
	given := make([]uint64, len(ops))
	for from := 0; from < len(ops); from += assignsMax {
		to := min(from+assignsMax, len(ops))
		if err := n.assign(ks, ops[from:to], given[from:to], w); err != nil {
			return err
		}
	}
	for i, text := range unknown {
		numbers[text] = given[at[i]]
	}
	return nil
}

// opsOf returns an Assign for each of the texts with the indexes unknown, without doubles, and for
// each index its op.
func opsOf(texts []string, unknown []int) (ops names.Ops, at []int) {
	byText := make(map[string]int, len(unknown))
	at = make([]int, len(unknown))
	for i, index := range unknown {
		text := texts[index]
		op, there := byText[text]
		if !there {
			op, byText[text] = len(ops), len(ops)
			ops = append(ops, names.Op{Kind: names.Assign, Text: text})
		}
		at[i] = op
	}
	return ops, at
}

// assign writes the ops, and sets numbers to their results.
func (n *Names) assign(ks *shard.Keyspace, ops names.Ops, numbers []uint64, of *shard.Write) error {
	rows := make([]int64, len(ops))
	for {
		w := shard.Write{Ops: ops, Width: 1, Rows: rows, Deadline: of.Deadline, Permission: of.Permission}
		err := n.node.Write(ks, &w)
		switch {
		case errors.Is(err, errs.ErrOutcomeUnknown) && time.Now().Before(of.Deadline):
			time.Sleep(errs.RetryPauseMin)
			continue // a repeat gives the same numbers
		case err != nil:
			return notCounted(err)
		case len(w.Overflows) > 0:
			return &errs.ArgumentError{Field: "id", Problem: fmt.Sprintf("keyspace %s has given all its %d numbers", ks.Name, uint64(names.NumberMax))}
		}
		break
	}
	texts := make([]string, len(ops))
	for i := range ops {
		texts[i], numbers[i] = ops[i].Text, uint64(rows[i])
	}
	n.cache.keep(ks.FirstGroup, texts, numbers)
	return nil
}

// notCounted returns the error of a request whose names could not be written. Nothing of the request
// itself was proposed, so its outcome is known.
func notCounted(err error) error {
	if errors.Is(err, errs.ErrOutcomeUnknown) {
		return fmt.Errorf("%w: the ids of the request got no numbers in time", errs.ErrNoLeader)
	}
	if errors.Is(err, errs.ErrMemoryFull) {
		return errs.ErrMemoryFull // without the number of an op, which is not one of the request
	}
	return err
}

// Erase removes a text, and returns the number that it had, or 0. Nobody gets the number again, and its counts stay. For
// pairAgeMax, other nodes may still count the text under its old number, so stop the writes to it first. It reads only
// Deadline and Permission of w.
func (n *Names) Erase(space, text string, w *shard.Write) (number uint64, err error) {
	ks, err := n.keyspace(space)
	if err != nil {
		return 0, err
	}
	if !names.Valid(text) {
		return 0, &errs.ArgumentError{Field: "id", Problem: Rule}
	}
	erase := shard.Write{Ops: names.Ops{{Kind: names.Erase, Text: text}}, Width: 1, Rows: make([]int64, 1), Deadline: w.Deadline, Permission: w.Permission}
	err = n.node.Write(ks, &erase)
	n.cache.forget()
	return uint64(erase.Rows[0]), err
}

// Texts sets texts[i] to the text of numbers[i], or to "" for a number without a text. It asks the
// leader for a number that the nearest replica has not given yet.
func (n *Names) Texts(space string, numbers []uint64, texts []string, opt *shard.ReadOptions) error {
	ks, err := n.keyspace(space)
	if err != nil {
		return err
	}
	unknown := n.cache.texts(ks.FirstGroup, numbers, texts)
	for _, opt := range []*shard.ReadOptions{stale(opt.Deadline), latest(opt.Deadline)} {
		if unknown, err = n.texts(ks, numbers, texts, unknown, opt); err != nil {
			return err
		}
	}
	return nil
}

// texts reads the texts of the numbers with the indexes unknown, and returns the indexes of the numbers
// that the replica had not given yet.
func (n *Names) texts(ks *shard.Keyspace, numbers []uint64, texts []string, unknown []int, opt *shard.ReadOptions) (rest []int, err error) {
	for len(unknown) > 0 {
		some := unknown[:min(len(unknown), textsMax)]
		unknown = unknown[len(some):]
		q := names.TextsQuery{Numbers: pick(numbers, some)}
		if err := n.node.Read(ks, &q, nil, opt); err != nil {
			return nil, err
		}
		n.cache.keep(ks.FirstGroup, q.Texts, q.Numbers)
		for i, at := range some {
			if texts[at] = q.Texts[i]; texts[at] == "" && numbers[at] >= q.Next {
				rest = append(rest, at)
			}
		}
	}
	return rest, nil
}

// textsMax bounds the texts of one answer of another node, to some 100 kB.
const textsMax = 1000

// pick returns the elements of all with the given indexes.
func pick[T any](all []T, indexes []int) []T {
	some := make([]T, len(indexes))
	for i, at := range indexes {
		some[i] = all[at]
	}
	return some
}

// group returns the first group of a names keyspace, or 0.
func (n *Names) group(space string) uint32 {
	if ks := n.node.Keyspace(space); ks != nil {
		return ks.FirstGroup
	}
	return 0
}

func (n *Names) keyspace(space string) (*shard.Keyspace, error) {
	if ks := n.node.Keyspace(space); ks != nil {
		return ks, nil
	}
	return nil, fmt.Errorf("%w: %s", errs.ErrUnknownKeyspace, space)
}
