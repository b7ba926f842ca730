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
	Life      string          `json:"life"`      // random id of the process's run
	NotReady  string          `json:"not_ready"` // why the node cannot serve; "" if it can
	DiskHangs bool            `json:"disk_hangs,omitempty"`
	Insecure  bool            `json:"insecure,omitempty"` // Config.Insecure
	Replicas  []ReplicaReport `json:"replicas"`
	// Memory and Disk are as of the node's last check.
	Memory tiering.Usage `json:"memory"`
	Disk   tiering.Usage `json:"disk"`
	// OpsWritten counts the ops that this node has written since its start, for clients and for
	// the sources that it reads. IDsRead counts the ids of reads; a read without ids counts as
	// one. Repeats and calls of other nodes do not count.
	OpsWritten uint64 `json:"ops_written"`
	IDsRead    uint64 `json:"ids_read"`
	// CertProblems is Config.CertProblems.
	CertProblems []string `json:"cert_problems,omitempty"`
}

// ReplicaReport extends GroupStatus.
type ReplicaReport struct {
	GroupStatus
	Marks   []raftfsm.Mark      `json:"marks,omitempty"`   // set by MarkedReports, ascending; empty for the catalog's group
	Entries []replica.EntryMark `json:"entries,omitempty"` // set by MarkedReports, ascending; see replica.EntryMark
	Misfit  *tiering.Misfit     `json:"misfit,omitempty"`  // nil for none
	// Outboxes is the number of authors with an outbox in this replica. Pairs is the number of
	// members of all its rows.
	Outboxes uint64 `json:"outboxes,omitempty"`
	Pairs    uint64 `json:"pairs,omitempty"`
	// NoSplit is why the shard cannot split now (raftfsm.CheckSplit). Unsettled is why it cannot grow once
	// more (replica.Growth.Settled). Only GrowthReports sets them; "" for no reason.
	NoSplit   string `json:"no_split,omitempty"`
	Unsettled string `json:"unsettled,omitempty"`
}

func newLife() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// reportRequest asks a node for its report.
type reportRequest struct {
	// Marks also requests ReplicaReport.Marks and Entries, about 6 KB for each replica.
	Marks bool `json:"marks,omitempty"`
	// Growth is the name of a keyspace for which to set ReplicaReport.NoSplit and Unsettled.
	Growth string `json:"growth,omitempty"`
}

// report describes this node, with the marks of its replicas if the request asks for them.
func (n *Node) report(asked reportRequest) NodeReport {
	r := NodeReport{
		Life: n.life, Memory: n.headroom.Memory(), Disk: n.headroom.Disk(), DiskHangs: n.headroom.DiskHangs.Load() > 0, Insecure: n.cfg.Insecure,
		OpsWritten: n.opsWritten.Load(), IDsRead: n.idsRead.Load(),
	}
	if n.cfg.CertProblems != nil {
		r.CertProblems = n.cfg.CertProblems()
	}
	if err := n.serves(); err != nil {
		r.NotReady = err.Error()
	}
	for _, status := range n.Status().Groups {
		replica := ReplicaReport{GroupStatus: status}
		if status.Leader != "" && !status.Votes() {
			// Only voters report the members. Otherwise the members of the catalog's group alone
			// would add 100 B for each node of the cluster to every report.
			replica.Members = nil
		}
		if status.ID == catalogGroup && asked.Marks {
			replica.Entries = n.registry.meta.RisingMarks()
		} else if here := n.registry.localOf(status.ID); here != nil {
			if asked.Marks {
				replica.Marks, replica.Entries = here.fsm.Marks(), here.group.RisingMarks()
			}
			replica.Misfit = n.tiering.Misfit(here.tier)
			replica.Outboxes, replica.Pairs = here.fsm.Besides()
			if status.Keyspace == asked.Growth {
				n.reportGrowth(&replica, here)
			}
		}
		r.Replicas = append(r.Replicas, replica)
	}
	return r
}

// Reports returns, by node key, the reports of all nodes of the catalog that answer within
// rpc.AskTimeout.
func (n *Node) Reports(ctx context.Context) map[string]NodeReport {
	return n.reports(ctx, reportRequest{})
}

// MarkedReports is Reports with the marks of all replicas.
func (n *Node) MarkedReports(ctx context.Context) map[string]NodeReport {
	return n.reports(ctx, reportRequest{Marks: true})
}

// GrowthReports is Reports with ReplicaReport.NoSplit and Unsettled of the replicas of a keyspace.
func (n *Node) GrowthReports(ctx context.Context, keyspace string) map[string]NodeReport {
	return n.reports(ctx, reportRequest{Growth: keyspace})
}

func (n *Node) reportGrowth(of *ReplicaReport, here *localReplica) {
	if err := raftfsm.CheckSplit(here.fsm.Machine); err != nil {
		of.NoSplit = err.Error()
	}
	if k := n.catalog.View().Keyspaces[of.Keyspace]; len(k.Grown) > 0 {
		g := n.registry.shardOf(of.ID)
		if err := here.group.Growth.Settled(g.kind, g.first, here.fsm.Route()); err != nil {
			of.Unsettled = err.Error()
		}
	}
}

func (n *Node) reports(ctx context.Context, asked reportRequest) map[string]NodeReport {
	return rpc.AskAllJSON(ctx, n.calls, n.cfg.NodeKey, maps.Keys(n.catalog.View().Nodes), methodReport, asked, n.serveReport)
}

func (n *Node) serveReport(_ context.Context, asked reportRequest) (NodeReport, error) {
	return n.report(asked), nil
}
