package bench

import (
	"context"
	"fmt"

	"github.com/countd/countd/client"
	"github.com/countd/countd/cmd/countctl/internal/load"
)

// benchCheckIDsMax bounds the rows that are read before and after a bench.
const benchCheckIDsMax = 1_000_000

// benchReport is the JSON output of bench.
type benchReport struct {
	*load.Report
	Check *benchCheck `json:"check,omitempty"`
}

// benchCheck compares the counts with the answers. They agree only if nobody else writes the
// column.
type benchCheck struct {
	Counted int64 `json:"counted"` // by how much the counts grew
	Least   int64 `json:"least"`   // increments that were acknowledged
	Most    int64 `json:"most"`    // including those that may have been applied
	Holds   bool  `json:"holds"`
}

// sumOf adds the column up over ids 1 … N of the bench.
func sumOf(ctx context.Context, server *client.Client, cfg *load.Config) (int64, error) {
	var sum int64
	ids := make([]client.ID, 0, client.GetIDsMax)
	for id := uint64(1); id <= cfg.IDs.N; id++ {
		ids = append(ids, client.ID(id))
		if len(ids) < client.GetIDsMax && id < cfg.IDs.N {
			continue
		}
		rows, err := server.GetMany(ctx, cfg.Keyspace, ids, []string{cfg.Column}, client.ReadOptions{Consistency: "linearizable"})
		if err != nil {
			return 0, fmt.Errorf("cannot sum column %s: %w", cfg.Column, err)
		}
		for _, row := range rows {
			n, _ := row.Counts.Get(cfg.Column)
			sum += n
		}
		ids = ids[:0]
	}
	return sum, nil
}

// checkOf compares the growth of the counts with the answers.
func checkOf(grown int64, r *load.Report) *benchCheck {
	c := &benchCheck{Counted: grown, Least: r.Increments, Most: r.Increments + r.UnknownOps}
	c.Holds = c.Least <= c.Counted && c.Counted <= c.Most
	return c
}
