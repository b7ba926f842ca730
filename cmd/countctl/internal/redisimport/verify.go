package redisimport

import (
	"context"
	"fmt"
	"slices"

	"github.com/countd/countd/client"
)

// Difference is a count that differs from Redis.
type Difference struct {
	Keyspace string    `json:"keyspace"`
	ID       client.ID `json:"id"`
	Column   string    `json:"column"`
	Redis    int64     `json:"redis"`
	Countd   int64     `json:"countd"`
}

// differencesShown bounds the recorded differences.
const differencesShown = 20

// Verdict is the result of a comparison.
type Verdict struct {
	Values  int64        `json:"values"` // compared
	Differ  int64        `json:"differ"`
	Samples []Difference `json:"samples"` // the first differences
}

// Verify iterates over all keys again, from the first on, and compares each value with the
// present count in countd.
func (i *Import) Verify(ctx context.Context) (Verdict, error) {
	again := &Import{cfg: i.cfg}
	again.cfg.State, again.cfg.From = "", State{}
	again.cfg.Bad = func(*BadValueError) error { return nil } // they were reported already
	var v Verdict
	err := again.walkAll(ctx, func(ctx context.Context, p *page) error { return again.compare(ctx, p, &v) })
	return v, err
}

func (i *Import) compare(ctx context.Context, p *page, v *Verdict) error {
	for ops := range slices.Chunk(p.ops, client.GetIDsMax) {
		ids := make([]client.ID, len(ops))
		for n := range ops {
			ids[n] = ops[n].ID
		}
		rows, err := i.cfg.Client.GetMany(ctx, p.pattern.Keyspace, ids, nil, client.ReadOptions{Consistency: "linearizable"})
		if err != nil {
			return fmt.Errorf("cannot read rows of keyspace %s: %w", p.pattern.Keyspace, err)
		}
		for n := range rows {
			v.compareRow(p.pattern.Keyspace, &ops[n], &rows[n])
		}
	}
	return nil
}

func (v *Verdict) compareRow(keyspace string, want *client.Op, got *client.Row) {
	for _, count := range want.Cells {
		v.Values++
		value, _ := got.Counts.Get(count.Column)
		if value == count.Value {
			continue
		}
		if v.Differ++; len(v.Samples) < differencesShown {
			v.Samples = append(v.Samples, Difference{keyspace, want.ID, count.Column, count.Value, value})
		}
	}
}
