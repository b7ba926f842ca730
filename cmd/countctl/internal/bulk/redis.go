package bulk

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/countd/countd/client"
)

const (
	// pagesAhead bounds the pages that are read ahead of the writes.
	pagesAhead = 2
)

// RedisConfig configures a RedisImport.
type RedisConfig struct {
	Redis    *redis.Client
	Client   *client.Client
	Patterns []*Pattern
	// Columns has a map for each keyspace: from a name in the keys or hash fields of Redis to a
	// column of the keyspace. Counts under other names are not copied.
	Columns map[string]map[string]string
	Batch   int                        // COUNT of a SCAN, 1 … client.WriteOpsMax; Redis may return a few more keys
	Bad     func(*BadValueError) error // called with a value that is not a count; its error ends the import
	Synced  func() error               // called before each save, to make durable what Bad has recorded; may be nil
	State   string                     // path of the progress file; "" for none
	From    RedisState                 // state from which to continue
	Retry   client.Retry               // how each write is repeated
}

// BadValueError is a value that cannot be a count.
type BadValueError struct {
	Key    string
	Field  string // field of a hash; "" for a string
	Value  string
	Reason string
}

func (b *BadValueError) Error() string {
	key := strconv.Quote(b.Key)
	if b.Field != "" {
		key += " field " + strconv.Quote(b.Field)
	}
	return fmt.Sprintf("key %s: %s", key, b.Reason)
}

// RedisImport is one run. Run and Verify each start a goroutine for walk, and wait for it.
type RedisImport struct {
	cfg   RedisConfig
	state RedisState
	keys  atomic.Int64 // keys that were read in this run
	rows  atomic.Int64 // rows that were acknowledged in this run

	writer *fencedWriter
}

// NewRedisImport returns an import that continues at cfg.From.
func NewRedisImport(cfg RedisConfig) *RedisImport {
	i := &RedisImport{cfg: cfg, state: cfg.From}
	i.state.Fence = i.state.Fence.Next()
	i.writer = newFencedWriter(i.state.Fence, cfg.Retry)
	return i
}

// Keys returns the keys that were read in this run. Like Rows, it is safe for concurrent
// use.
func (i *RedisImport) Keys() int64 { return i.keys.Load() }

// Rows returns the rows that were acknowledged in this run.
func (i *RedisImport) Rows() int64 { return i.rows.Load() }

// Run copies the remaining keys and returns the final state. It writes the progress file
// first, so that the next run knows the fence of this one.
func (i *RedisImport) Run(ctx context.Context) (RedisState, error) {
	if err := i.save(); err != nil {
		return i.state, err
	}
	err := i.walkAll(ctx, i.write)
	if saveErr := i.save(); err == nil {
		err = saveErr
	}
	return i.state, err
}

// walkAll reads the keys of all patterns, page by page, beginning at the state's position. It calls
// visit with a page, and then moves the position past the page.
func (i *RedisImport) walkAll(ctx context.Context, visit func(context.Context, *page) error) error {
	ctx, cancel := context.WithCancel(ctx)
	pages := make(chan *page, pagesAhead)
	walked := make(chan error, 1)
	go func() { // this goroutine ends after the last key, or when ctx ends
		defer close(pages)
		walked <- i.walk(ctx, pages)
	}()
	saved := time.Now()
	var failed error
	for p := range pages {
		if failed != nil {
			continue
		}
		if failed = i.step(ctx, p, visit); failed != nil {
			cancel()
			continue
		}
		if time.Since(saved) >= saveEvery {
			saved = time.Now()
			if failed = i.save(); failed != nil {
				cancel()
			}
		}
	}
	cancel()
	if err := <-walked; failed == nil {
		failed = err
	}
	return failed
}

// step reports the bad values of a page, calls visit with the page, and moves the position past it.
func (i *RedisImport) step(ctx context.Context, p *page, visit func(context.Context, *page) error) error {
	for _, bad := range p.bad {
		if err := i.cfg.Bad(bad); err != nil {
			return err
		}
	}
	if err := visit(ctx, p); err != nil {
		return err
	}
	i.rows.Add(int64(len(p.ops)))
	i.state.add(p)
	return nil
}

// write sets the rows of a page. The writes have numbers that follow from the run's Fence. So a
// repeated write is applied once, and a late write of an earlier run changes nothing.
func (i *RedisImport) write(ctx context.Context, p *page) error {
	for ops := range slices.Chunk(p.ops, client.WriteOpsMax) {
		_, err := i.writer.Write(ctx, func(ctx context.Context, o client.WriteOptions) (client.WriteResult, error) {
			return i.cfg.Client.Set(ctx, p.pattern.Keyspace, ops, o)
		})
		if err != nil {
			return fmt.Errorf("cannot write rows of keyspace %s: %w", p.pattern.Keyspace, err)
		}
	}
	return nil
}

func (i *RedisImport) save() error {
	if i.cfg.State == "" {
		return nil
	}
	if i.cfg.Synced != nil { // sync the recorded bad values before the saved position passes them
		if err := i.cfg.Synced(); err != nil {
			return err
		}
	}
	return writeProgress(i.cfg.State, i.state)
}

type page struct {
	number       int // index of pattern in RedisConfig.Patterns
	pattern      *Pattern
	ops          []client.Op // one for each row
	bad          []*BadValueError
	keys         int64
	values       int64
	ignored      int64    // keys and fields that are not to be copied
	came         Names    // number of copied values, by the name of their column in Redis
	left         Names    // number of ignored keys and fields, by the name of their column in Redis
	expiring     int64    // number of copied keys that have a time to live
	expiringKeys []string // the first of these keys
	next         uint64   // cursor of the next page; 0 after the last page of the pattern
}

// walk reads the pages, beginning at the saved position, and sends them to the channel.
func (i *RedisImport) walk(ctx context.Context, pages chan<- *page) error {
	place := i.state.Place
	for number := place.Pattern; number < len(i.cfg.Patterns); number++ {
		cursor := place.Cursor
		place.Cursor = 0
		for {
			p, err := i.read(ctx, number, cursor)
			if err != nil {
				return fmt.Errorf("cannot read from Redis: %w", err)
			}
			i.keys.Add(p.keys)
			select {
			case pages <- p:
			case <-ctx.Done():
				return ctx.Err()
			}
			if cursor = p.next; cursor == 0 {
				break
			}
		}
	}
	return nil
}

func (i *RedisImport) read(ctx context.Context, number int, cursor uint64) (*page, error) {
	p := &page{number: number, pattern: i.cfg.Patterns[number], came: Names{}, left: Names{}}
	keys, next, err := i.scan(ctx, p.pattern, cursor)
	if err != nil {
		return nil, err
	}
	p.next = next
	rows := rowsOf{patterns: i.cfg.Patterns, columns: i.cfg.Columns[p.pattern.Keyspace], page: p, index: map[client.ID]int{}}
	if p.pattern.hashes() {
		return p, i.readHashes(ctx, keys, &rows)
	}
	return p, i.readCounts(ctx, keys, &rows)
}

// scan returns the next keys that may match a pattern. It filters hashes by their type. It cannot
// filter counts, because they have one of three types and SCAN accepts only one.
func (i *RedisImport) scan(ctx context.Context, p *Pattern, cursor uint64) ([]string, uint64, error) {
	if p.hashes() {
		return i.cfg.Redis.ScanType(ctx, cursor, p.glob, int64(i.cfg.Batch), "hash").Result()
	}
	return i.cfg.Redis.Scan(ctx, cursor, p.glob, int64(i.cfg.Batch)).Result()
}

// readCounts reads keys that are one count each. The value of a string is its count. The count of a
// set or sorted set is its number of members. readCounts skips keys of other types.
func (i *RedisImport) readCounts(ctx context.Context, keys []string, rows *rowsOf) error {
	types, left := make([]*redis.StatusCmd, len(keys)), make([]*redis.DurationCmd, len(keys))
	_, err := i.cfg.Redis.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for n, key := range keys {
			types[n], left[n] = pipe.Type(ctx, key), pipe.PTTL(ctx, key)
		}
		return nil
	})
	if err != nil {
		return err
	}
	var wanted, sets, sorted counted
	for n, key := range keys {
		switch types[n].Val() {
		case "string":
			wanted.add(key, left[n].Val(), rows)
		case "set":
			sets.add(key, left[n].Val(), rows)
		case "zset":
			sorted.add(key, left[n].Val(), rows)
		}
	}
	if err := i.readStrings(ctx, &wanted, rows); err != nil {
		return err
	}
	return i.readSizes(ctx, &sets, &sorted, rows)
}

// counted holds keys of one type, and for each key the row and column of its count.
type counted struct {
	keys  []string
	cells []cell
}

func (c *counted) add(key string, left time.Duration, rows *rowsOf) {
	if cell, ok := rows.cellOf(key); ok {
		rows.expires(key, left)
		c.keys, c.cells = append(c.keys, key), append(c.cells, cell)
	}
}

func (i *RedisImport) readStrings(ctx context.Context, wanted *counted, rows *rowsOf) error {
	if len(wanted.keys) == 0 {
		return nil
	}
	values, err := i.cfg.Redis.MGet(ctx, wanted.keys...).Result()
	if err != nil {
		return err
	}
	for n, value := range values {
		if text, ok := value.(string); ok { // if it is not a string, the key has been deleted since the scan
			rows.put(wanted.keys[n], "", wanted.cells[n], text)
		}
	}
	return nil
}

func (i *RedisImport) readSizes(ctx context.Context, sets, sorted *counted, rows *rowsOf) error {
	if len(sets.keys)+len(sorted.keys) == 0 {
		return nil
	}
	sizes, err := i.cfg.Redis.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for _, key := range sets.keys {
			pipe.SCard(ctx, key)
		}
		for _, key := range sorted.keys {
			pipe.ZCard(ctx, key)
		}
		return nil
	})
	cells := slices.Concat(sets.cells, sorted.cells)
	for n, size := range sizes {
		switch one := size.Err(); {
		case redis.HasErrorPrefix(one, "WRONGTYPE"): // a key of another type has replaced the set
		case one != nil:
			return one
		default:
			rows.set(cells[n], size.(*redis.IntCmd).Val())
		}
	}
	if redis.HasErrorPrefix(err, "WRONGTYPE") {
		return nil
	}
	return err
}

// hash is a hash of a page, with the Redis commands that read it.
type hash struct {
	key    string
	id     client.ID
	values *redis.SliceCmd // value of each field to copy; nil for a missing field
	fields *redis.IntCmd   // number of fields of the hash
	left   *redis.DurationCmd
	names  *redis.StringSliceCmd
}

func (i *RedisImport) readHashes(ctx context.Context, keys []string, rows *rowsOf) error {
	names := slices.Sorted(maps.Keys(rows.columns))
	var hashes []*hash
	_, err := i.cfg.Redis.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for _, key := range keys {
			if id, ok := rows.idOf(key); ok {
				h := &hash{key: key, id: id, fields: pipe.HLen(ctx, key), left: pipe.PTTL(ctx, key)}
				if len(names) > 0 {
					h.values = pipe.HMGet(ctx, key, names...)
				}
				hashes = append(hashes, h)
			}
		}
		return nil
	})
	if err != nil && !errors.Is(err, redis.Nil) {
		return err
	}
	var more []*hash
	for _, h := range hashes {
		rows.expires(h.key, h.left.Val())
		copied := int64(0)
		for n, name := range names {
			if text, ok := h.values.Val()[n].(string); ok {
				rows.put(h.key, name, cell{h.id, rows.columns[name], name}, text)
				copied++
			}
		}
		if left := h.fields.Val() - copied; left > 0 { // a negative number means that fields were deleted between the commands
			rows.page.ignored += left
			more = append(more, h)
		}
	}
	return i.nameFields(ctx, more, rows)
}

// nameFields records the names of the fields that are not copied. It skips hashes with more than
// namesMax fields, because their fields are ids rather than columns.
func (i *RedisImport) nameFields(ctx context.Context, hashes []*hash, rows *rowsOf) error {
	hashes = slices.DeleteFunc(hashes, func(h *hash) bool { return h.fields.Val() > namesMax })
	if len(hashes) == 0 {
		return nil
	}
	_, err := i.cfg.Redis.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for _, h := range hashes {
			h.names = pipe.HKeys(ctx, h.key)
		}
		return nil
	})
	if err != nil && !errors.Is(err, redis.Nil) {
		return err
	}
	for _, h := range hashes {
		for _, name := range h.names.Val() {
			if _, copied := rows.columns[name]; !copied {
				rows.page.left.add(name, 1)
			}
		}
	}
	return nil
}

// Difference is a count that differs between Redis and countd.
type Difference struct {
	Keyspace string    `json:"keyspace"`
	ID       client.ID `json:"id"`
	Column   string    `json:"column"`
	Redis    int64     `json:"redis"`
	Countd   int64     `json:"countd"`
}

const differencesShown = 20

// Verdict is the result of a comparison.
type Verdict struct {
	Values  int64        `json:"values"` // number of compared values
	Differ  int64        `json:"differ"`
	Samples []Difference `json:"samples"` // the first differences
}

// Verify reads all keys again, from the first pattern on. It compares each value with the current
// count in countd.
func (i *RedisImport) Verify(ctx context.Context) (Verdict, error) {
	again := &RedisImport{cfg: i.cfg}
	again.cfg.State, again.cfg.From = "", RedisState{}
	again.cfg.Bad = func(*BadValueError) error { return nil } // Run has reported the bad values
	var v Verdict
	err := again.walkAll(ctx, func(ctx context.Context, p *page) error { return again.compare(ctx, p, &v) })
	return v, err
}

func (i *RedisImport) compare(ctx context.Context, p *page, v *Verdict) error {
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
			v.Samples = append(v.Samples, Difference{Keyspace: keyspace, ID: want.ID, Column: count.Column, Redis: count.Value, Countd: value})
		}
	}
}
