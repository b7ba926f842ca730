package shard

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"maps"
	"time"

	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/shard/leadership"
	"github.com/countd/countd/shard/rpc"
)

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
	By     int    `json:"by,omitempty"` // factor of that growth
}

// report describes this node, with the marks of its replicas if the request asks for them.
func (n *Node) report(asked reportRequest) NodeReport {
	r := NodeReport{
		Life: n.life, Memory: n.headroom.Memory(), Disk: n.headroom.Disk(), DiskHangs: n.headroom.DiskHangs.Load() > 0,
		OpsWritten: n.opsWritten.Load(), IDsRead: n.idsRead.Load(),
	}
	if n.cfg.Report != nil {
		n.cfg.Report(&r)
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
			replica.ApplySeconds = time.Duration(here.applying.Load()).Seconds()
			if status.Keyspace == asked.Growth {
				n.reportGrowth(&replica, here, asked.By)
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

// GrowthReports is Reports with ReplicaReport.NoSplit and Unsettled of the replicas of a keyspace, for a
// growth by a factor.
func (n *Node) GrowthReports(ctx context.Context, keyspace string, by int) map[string]NodeReport {
	return n.reports(ctx, reportRequest{Growth: keyspace, By: by})
}

func (n *Node) reportGrowth(of *ReplicaReport, here *localReplica, by int) {
	k := n.catalog.View().Keyspaces[of.Keyspace]
	if err := raftfsm.CheckSplit(here.fsm.Machine, leadership.PartitionOf(&k, of.ID, by)); err != nil {
		of.NoSplit = err.Error()
	}
	if len(k.Grown) > 0 {
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
