package shard

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"maps"

	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/shard/replica"
	"github.com/countd/countd/shard/rpc"
	"github.com/countd/countd/shard/tiering"
)

// NodeReport is what a node says of itself and its replicas.
type NodeReport struct {
	Life       string          `json:"life"`      // another in each life of the process
	NotReady   string          `json:"not_ready"` // why it cannot serve; "" when it can
	MemoryFull bool            `json:"memory_full"`
	DiskFull   bool            `json:"disk_full"`
	DiskHangs  bool            `json:"disk_hangs,omitempty"`
	Insecure   bool            `json:"insecure,omitempty"` // Config.Insecure
	Replicas   []ReplicaReport `json:"replicas"`
	// CertProblems is Config.CertProblems.
	CertProblems []string `json:"cert_problems,omitempty"`
}

// EntryMark tells one applied entry of a group's log from any other.
type EntryMark = replica.EntryMark

// ReplicaReport is GroupStatus with what tells replicas of one group apart.
type ReplicaReport struct {
	GroupStatus
	Marks   []raftfsm.Mark      `json:"marks,omitempty"`   // rising; none of the catalog's group
	Entries []replica.EntryMark `json:"entries,omitempty"` // rising: see entryWindow
	Misfit  *tiering.Misfit     `json:"misfit,omitempty"`  // one of them; nil for none
	// Outboxes is how many authors have an outbox here, Pairs how many members all rows have.
	Outboxes uint64 `json:"outboxes,omitempty"`
	Pairs    uint64 `json:"pairs,omitempty"`
}

// newLife returns a word that no other life of a process has.
func newLife() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// Report describes this node.
func (n *Node) Report() NodeReport {
	r := NodeReport{Life: n.life, MemoryFull: n.headroom.MemoryFull.Load(), DiskFull: n.headroom.DiskFull.Load(), DiskHangs: n.headroom.DiskHangs.Load() > 0, Insecure: n.cfg.Insecure}
	if n.cfg.CertProblems != nil {
		r.CertProblems = n.cfg.CertProblems()
	}
	if err := n.serves(); err != nil {
		r.NotReady = err.Error()
	}
	for _, status := range n.Status().Groups {
		replica := ReplicaReport{GroupStatus: status}
		if status.ID == catalogGroup {
			replica.Entries = n.registry.meta.RisingMarks()
		} else if g := n.registry.shardOf(status.ID); g != nil {
			if here := g.replica.Load(); here != nil {
				replica.Marks, replica.Entries = here.fsm.Marks(), here.group.RisingMarks()
				replica.Misfit = n.tiering.Misfit(here.tier)
				if here.counters != nil {
					replica.Outboxes, replica.Pairs = here.counters.Outboxes().Stats().Keys, here.counters.Pairs()
				}
			}
		}
		r.Replicas = append(r.Replicas, replica)
	}
	return r
}

// Reports asks every node of the catalog to describe itself, and returns what
// those say, by key, that answer within rpc.AskTimeout.
func (n *Node) Reports(ctx context.Context) map[string]NodeReport {
	return rpc.AskAllJSON(ctx, n.calls, n.cfg.NodeKey, maps.Keys(n.catalog.View().Nodes), methodReport, rpc.None{}, n.serveReport)
}

func (n *Node) serveReport(context.Context, rpc.None) (NodeReport, error) { return n.Report(), nil }
