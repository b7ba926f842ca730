package leadership

import (
	"context"
	"encoding/binary"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/shard/replica"
)

// termProbe is a question to another replica of a group for its term and index.
type termProbe struct {
	group uint32
	term  uint64 // term of the asking replica
	// asker and asked are the numbers of the two replicas. If the asked node now has another
	// replica of the group, that replica must not answer. An asking replica counts towards a
	// majority only if it has the number asker.
	asker, asked uint64
}

// termAnswer is a replica's answer to a term probe.
type termAnswer struct {
	term uint64 // term of the replica, or the constant disagrees if the answer must not count
	// If the answering replica leads, and the terms of both replicas prove its leadership (see
	// AskLeader), index is the group's commit index. Otherwise it is 0.
	index uint64
}

// termAnswerBytesMax bounds an encoded termAnswer.
const termAnswerBytesMax = 2 * binary.MaxVarintLen64

// disagrees is greater than any term.
const disagrees = ^uint64(0)

// sendProbes returns a function that sends term probes to a node. That node answers without calling
// other nodes.
func (p *Prover) sendProbes(node string) func(context.Context, []termProbe) ([]termAnswer, error) {
	return func(ctx context.Context, asked []termProbe) ([]termAnswer, error) {
		request := wire.AppendBytes(make([]byte, 0, 32+8*len(asked)), []byte(p.cfg.Key))
		answer, err := p.cfg.Call(ctx, node, methodProbe, appendProbes(request, asked), len(asked)*termAnswerBytesMax)
		if err != nil {
			return nil, err
		}
		r := wire.Reader{Rest: answer}
		all := make([]termAnswer, len(asked))
		for i := range all {
			all[i] = termAnswer{r.Uint(), r.Uint()}
		}
		return all, r.End()
	}
}

func (p *Prover) serveProbes(_ context.Context, request []byte) ([]byte, error) {
	r := wire.Reader{Rest: request}
	asker := string(r.Bytes())
	asked, err := parseProbes(&r)
	if err != nil {
		return nil, err
	}
	answer := make([]byte, 0, 12*len(asked))
	for _, q := range asked {
		s := p.answerProbe(q, replica.RaftID(asker, q.asker))
		answer = binary.AppendUvarint(answer, s.term)
		answer = binary.AppendUvarint(answer, s.index)
	}
	return answer, nil
}

// answerProbe answers a term probe if this node has the asked replica, and that replica's
// configuration has both replicas. Otherwise it returns the term disagrees. The term of a replica
// outside its own configuration proves nothing, because its later role in elections is unknown.
func (p *Prover) answerProbe(q termProbe, asker raft.ServerID) termAnswer {
	r, here := p.cfg.Find(q.group)
	if !here {
		return termAnswer{term: disagrees}
	}
	g := r.Group
	servers := g.Configuration().Servers
	if g.Number() != q.asked || !replica.Contains(servers, g.ID()) || !replica.Contains(servers, asker) {
		return termAnswer{term: disagrees}
	}
	if r.Applied == nil {
		return termAnswer{term: g.Term()}
	}
	return termAnswer{g.Term(), g.IndexWith(r.Applied, asker, q.term)}
}

func appendProbes(dst []byte, asked []termProbe) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(asked)))
	for _, q := range asked {
		dst = binary.AppendUvarint(dst, uint64(q.group))
		dst = binary.AppendUvarint(dst, q.term)
		dst = binary.AppendUvarint(dst, q.asker)
		dst = binary.AppendUvarint(dst, q.asked)
	}
	return dst
}

func parseProbes(r *wire.Reader) ([]termProbe, error) {
	asked := make([]termProbe, r.CountTo(4, groupsMax))
	for i := range asked {
		asked[i] = termProbe{group: uint32(r.UintTo(1<<32 - 1)), term: r.Uint(), asker: r.Uint(), asked: r.Uint()}
	}
	return asked, r.End()
}
