package shard

import (
	"errors"

	"github.com/countd/countd/shard/metric"
	"github.com/countd/countd/shard/raftstore"
	"github.com/countd/countd/shard/storage"
)

// openLog opens the log of all groups of the node, and registers its metrics.
func (n *Node) openLog() (*raftstore.Log, error) {
	l, err := storage.OpenNodeLog(n.cfg.Dir)
	if err != nil {
		return nil, err
	}
	err = metric.Register(n.cfg.Metrics,
		metric.Gauge("countd_raft_log_bytes", "Disk space of the log of all groups, including segments created in advance.",
			func() float64 { return float64(l.Usage().Bytes) }),
		metric.Gauge("countd_raft_log_live_bytes", "Approximate part of countd_raft_log_bytes that holds entries still needed.",
			func() float64 { return float64(l.Usage().LiveBytes) }))
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}
