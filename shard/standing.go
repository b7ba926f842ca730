package shard

import (
	"context"
	"encoding/binary"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/shard/replica"
	"github.com/countd/countd/shard/wire"
)

// standingAsked asks for a replica's place in a group, and tells the asker's.
type standingAsked struct {
	group uint32
	term  uint64 // no later one was known to the asker
	// asker and asked are the numbers of the two replicas. Another replica that is on
	// the asked node by now does not answer for this one, and a leader does not count
	// another replica of the asker's node.
	asker, asked uint64
}

// standing is a replica's place in its group.
type standing struct {
	term uint64 // disagrees, for a replica that cannot be counted
	// index is how far the group is, if that is proved: the replica leads, and it
	// and the asker are a majority in no later term. 0 otherwise.
	index uint64
}

// disagrees is a term that is later than any.
const disagrees = ^uint64(0)

// sendStandings asks a node for its places in groups. It is answered at once:
// nobody waits there for a third node.
func (n *Node) sendStandings(node string) func(context.Context, []standingAsked) ([]standing, error) {
	return func(ctx context.Context, asked []standingAsked) ([]standing, error) {
		method, numbered := methodStanding, false
		for _, q := range asked {
			if q.asker != 0 || q.asked != 0 { // not before all programs know the other method
				method, numbered = methodProbe, true
			}
		}
		request := wire.AppendBytes(make([]byte, 0, 32+8*len(asked)), []byte(n.cfg.NodeKey))
		answer, err := n.calls.Call(ctx, node, method, appendStandingsAsked(request, asked, numbered))
		if err != nil {
			return nil, err
		}
		r := wire.Reader{Rest: answer}
		all := make([]standing, len(asked))
		for i := range all {
			all[i] = standing{r.Uint(), r.Uint()}
		}
		return all, r.End()
	}
}

// serveStandings answers for replicas of number 0, serveProbes for any.
func (n *Node) serveStandings(_ context.Context, request []byte) ([]byte, error) {
	return n.answerStandings(request, false)
}

func (n *Node) serveProbes(_ context.Context, request []byte) ([]byte, error) {
	return n.answerStandings(request, true)
}

func (n *Node) answerStandings(request []byte, numbered bool) ([]byte, error) {
	r := wire.Reader{Rest: request}
	asker := string(r.Bytes())
	asked, err := parseStandingsAsked(&r, numbered)
	if err != nil {
		return nil, err
	}
	answer := make([]byte, 0, 12*len(asked))
	for _, q := range asked {
		s := n.standing(q, replica.RaftID(asker, q.asker))
		answer = binary.AppendUvarint(answer, s.term)
		answer = binary.AppendUvarint(answer, s.index)
	}
	return answer, nil
}

// standing answers for the replica that is asked for, if it is here and its
// configuration has both itself and the asker. The term of a replica that is in no
// configuration proves nothing: it may vote for nobody and acknowledge nothing now, but
// it is not known what it is to be.
func (n *Node) standing(q standingAsked, asker raft.ServerID) standing {
	g, applied := n.meta, n.catalog.Applied
	if q.group != catalogGroup {
		shard := n.shardOf(q.group)
		if shard == nil {
			return standing{term: disagrees}
		}
		r := shard.replica.Load()
		if r == nil {
			return standing{term: disagrees}
		}
		g, applied = r.group, r.fsm.Applied
	}
	servers := g.Configuration().Servers
	if g.Number() != q.asked || !replica.Contains(servers, g.ID()) || !replica.Contains(servers, asker) {
		return standing{term: disagrees}
	}
	if q.group == catalogGroup {
		return standing{term: g.Term()} // its followers ask for a round of the leader's own
	}
	return standing{g.Term(), g.IndexWith(applied, asker, q.term)}
}

func appendStandingsAsked(dst []byte, asked []standingAsked, numbered bool) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(asked)))
	for _, q := range asked {
		dst = binary.AppendUvarint(dst, uint64(q.group))
		dst = binary.AppendUvarint(dst, q.term)
		if numbered {
			dst = binary.AppendUvarint(dst, q.asker)
			dst = binary.AppendUvarint(dst, q.asked)
		}
	}
	return dst
}

func parseStandingsAsked(r *wire.Reader, numbered bool) ([]standingAsked, error) {
	asked := make([]standingAsked, readGroups(r, 2))
	for i := range asked {
		asked[i] = standingAsked{group: uint32(r.UintTo(1<<32 - 1)), term: r.Uint()}
		if numbered {
			asked[i].asker, asked[i].asked = r.Uint(), r.Uint()
		}
	}
	return asked, r.End()
}
