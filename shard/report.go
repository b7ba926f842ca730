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

// NodeReport describes a node and its replicas.
type NodeReport struct {
	Life       string          `json:"life"`      // differs in each run of the process
	NotReady   string          `json:"not_ready"` // why the node cannot serve; "" if it can
	MemoryFull bool            `json:"memory_full"`
	DiskFull   bool            `json:"disk_full"`
	DiskHangs  bool            `json:"disk_hangs,omitempty"`
	Insecure   bool            `json:"insecure,omitempty"` // Config.Insecure
	Replicas   []ReplicaReport `json:"replicas"`
	// CertProblems is Config.CertProblems.
	CertProblems []string `json:"cert_problems,omitempty"`
}

// ReplicaReport is GroupStatus with more about the replica.
type ReplicaReport struct {
	GroupStatus
	Marks   []raftfsm.Mark      `json:"marks,omitempty"`   // ascending; none for the catalog's group
	Entries []replica.EntryMark `json:"entries,omitempty"` // ascending: see replica.EntryMark
	Misfit  *tiering.Misfit     `json:"misfit,omitempty"`  // nil for none
	// Outboxes counts the authors with an outbox here, Pairs the members of all rows.
	Outboxes uint64 `json:"outboxes,omitempty"`
	Pairs    uint64 `json:"pairs,omitempty"`
}

// newLife returns a word that no other run of a process has.
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
		} else if here := n.registry.localOf(status.ID); here != nil {
			replica.Marks, replica.Entries = here.fsm.Marks(), here.group.RisingMarks()
			replica.Misfit = n.tiering.Misfit(here.tier)
			if here.counters != nil {
				replica.Outboxes, replica.Pairs = here.counters.Outboxes().Stats().Keys, here.counters.Pairs()
			}
		}
		r.Replicas = append(r.Replicas, replica)
	}
	return r
}

// Reports asks every node of the catalog to describe itself. It returns, by node key, the answers
// that arrive within rpc.AskTimeout.
func (n *Node) Reports(ctx context.Context) map[string]NodeReport {
	return rpc.AskAllJSON(ctx, n.calls, n.cfg.NodeKey, maps.Keys(n.catalog.View().Nodes), methodReport, rpc.None{}, n.serveReport)
}

func (n *Node) serveReport(context.Context, rpc.None) (NodeReport, error) { return n.Report(), nil }
