package shard

import (
	"context"
	"encoding/binary"
	"slices"

	"github.com/hashicorp/raft"
)

// standingAsked asks for a replica's place in a group, and tells the asker's.
type standingAsked struct {
	group uint32
	term  uint64 // no later one was known to the asker
}

// standing is a replica's place in its group.
type standing struct {
	term uint64 // ^0, which agrees with nobody, for a group that is not here
	// index is how far the group is, if that is proved: the replica leads, and it
	// and the asker are a majority in no later term. 0 otherwise.
	index uint64
}

// sendStandings asks a node for its places in groups. It is answered at once:
// nobody waits there for a third node.
func (n *Node) sendStandings(node string) func(context.Context, []standingAsked) ([]standing, error) {
	return func(ctx context.Context, asked []standingAsked) ([]standing, error) {
		request := appendBytes(make([]byte, 0, 32+8*len(asked)), []byte(n.cfg.NodeKey))
		answer, err := n.calls.call(ctx, node, methodStanding, appendStandingsAsked(request, asked))
		if err != nil {
			return nil, err
		}
		r := wireReader{rest: answer}
		all := make([]standing, len(asked))
		for i := range all {
			all[i] = standing{r.uint(), r.uint()}
		}
		return all, r.end()
	}
}

func (n *Node) serveStandings(_ context.Context, request []byte) ([]byte, error) {
	r := wireReader{rest: request}
	asker := raft.ServerID(r.bytes())
	asked, err := parseStandingsAsked(&r)
	if err != nil {
		return nil, err
	}
	answer := make([]byte, 0, 12*len(asked))
	for _, q := range asked {
		s := n.standing(q, asker)
		answer = binary.AppendUvarint(answer, s.term)
		answer = binary.AppendUvarint(answer, s.index)
	}
	return answer, nil
}

func (n *Node) standing(q standingAsked, asker raft.ServerID) standing {
	if q.group == catalogGroup {
		return standing{term: n.meta.raft.CurrentTerm()}
	}
	g := n.shardOf(q.group)
	if g == nil {
		return standing{term: ^uint64(0)}
	}
	r := g.replica.Load()
	if r == nil {
		return standing{term: ^uint64(0)}
	}
	return standing{r.group.raft.CurrentTerm(), n.indexWith(r, asker, q.term)}
}

// indexWith returns how far a group is, if this node leads it and is with the asker
// a majority of its voters: the asker was in that term, and then this node was. It
// returns 0 otherwise.
func (n *Node) indexWith(r *replica, asker raft.ServerID, askersTerm uint64) uint64 {
	g := r.group
	term := g.readyTerm.Load()
	if askersTerm > term || g.ready() != nil {
		return 0
	}
	if !twoSuffice(g.voters(), asker, raft.ServerID(n.cfg.NodeKey)) {
		return 0
	}
	index := committedIndex(g, r.fsm.Applied)
	if g.readyTerm.Load() != term || g.ready() != nil {
		return 0
	}
	return index
}

// twoSuffice reports whether two nodes are a majority of the voters.
func twoSuffice(voters []raft.ServerID, a, b raft.ServerID) bool {
	return len(voters)/2+1 <= 2 && a != b && slices.Contains(voters, a) && slices.Contains(voters, b)
}

func appendStandingsAsked(dst []byte, asked []standingAsked) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(asked)))
	for _, q := range asked {
		dst = binary.AppendUvarint(dst, uint64(q.group))
		dst = binary.AppendUvarint(dst, q.term)
	}
	return dst
}

func parseStandingsAsked(r *wireReader) ([]standingAsked, error) {
	n := r.count(2)
	if n > groupsMax {
		r.fail("too many groups")
		n = 0
	}
	asked := make([]standingAsked, n)
	for i := range asked {
		asked[i] = standingAsked{uint32(r.uintTo(1<<32 - 1)), r.uint()}
	}
	return asked, r.end()
}
