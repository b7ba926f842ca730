package apitest

import (
	"slices"
	"sync"

	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/names"
	"github.com/countd/countd/shard"
)

// NodeNames holds the names of the names keyspaces of a fake node. The zero value has none. It is safe
// for concurrent use.
type NodeNames struct {
	mu       sync.Mutex
	texts    map[string][]string // by keyspace; number 1 is the first
	assigned int                 // texts that got a number
}

// Answer stores the result of a query of names in the query. It returns false for another query.
func (n *NodeNames) Answer(keyspace string, query raftfsm.Query) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	texts := n.texts[keyspace]
	switch q := query.(type) {
	case *names.NumbersQuery:
		q.Numbers = make([]uint64, len(q.Texts))
		for i, text := range q.Texts {
			q.Numbers[i] = uint64(slices.Index(texts, text) + 1)
		}
	case *names.TextsQuery:
		q.Texts, q.Next = make([]string, len(q.Numbers)), uint64(len(texts)+1)
		for i, number := range q.Numbers {
			if number >= 1 && number < q.Next {
				q.Texts[i] = texts[number-1]
			}
		}
	default:
		return false
	}
	return true
}

// Write applies a write of names. It returns false for another write.
func (n *NodeNames) Write(keyspace string, w *shard.Write) bool {
	ops, is := w.Ops.(names.Ops)
	if !is {
		return false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.texts == nil {
		n.texts = map[string][]string{}
	}
	for i, op := range ops {
		at := slices.Index(n.texts[keyspace], op.Text)
		switch {
		case at >= 0 && op.Kind == names.Erase:
			n.texts[keyspace][at] = ""
		case at < 0 && op.Kind == names.Assign:
			at = len(n.texts[keyspace])
			n.texts[keyspace] = append(n.texts[keyspace], op.Text)
			n.assigned++
		}
		w.Rows[i*w.Width] = int64(at + 1)
	}
	return true
}

// Erase ends the name of a text.
func (n *NodeNames) Erase(keyspace, text string) {
	n.Write(keyspace, &shard.Write{Ops: names.Ops{{Kind: names.Erase, Text: text}}, Rows: make([]int64, 1), Width: 1})
}

// Assigned returns how many texts have got a number so far.
func (n *NodeNames) Assigned() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.assigned
}
