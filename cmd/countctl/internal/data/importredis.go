package data

import (
	"cmp"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/spf13/cobra"

	"github.com/countd/countd/client"
	"github.com/countd/countd/client/admin"
	"github.com/countd/countd/cmd/countctl/internal/bulk"
	"github.com/countd/countd/cmd/countctl/internal/cli"
	"github.com/countd/countd/internal/program"
)

// redisBatchDefault is the default of --batch, in keys. Redis answers a SCAN of this size in about
// a millisecond.
const redisBatchDefault = 1000

const redisTimeout = 30 * time.Second

// redisFlags holds the flags that only an import from Redis has.
type redisFlags struct {
	patterns   []string
	verify     bool
	verifyOnly bool
	batchGiven bool
}

type redisOutput struct {
	Source       string        `json:"source"`
	Keys         int64         `json:"keys"`                    // number of keys that were read by all runs
	Values       int64         `json:"values"`                  // number of values that were copied by all runs
	Ignored      int64         `json:"ignored"`                 // number of keys, and of fields of hashes, that match no pattern or column
	Left         bulk.Names    `json:"left,omitempty"`          // names of ignored keys and fields, with their numbers; without names that --map maps to ""
	Rejected     int64         `json:"rejected"`                // number of values that are not counts, and of keys whose ids are not numbers
	Expiring     int64         `json:"expiring,omitempty"`      // number of copied keys that have a time to live
	ExpiringKeys []string      `json:"expiring_keys,omitempty"` // the first of these keys
	RejectsFile  string        `json:"rejects_file,omitempty"`
	Resumed      bool          `json:"resumed,omitempty"`
	Verified     *bulk.Verdict `json:"verified,omitempty"`
	Seconds      float64       `json:"seconds"` // duration of this run
}

func (r *redisFlags) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringArrayVar(&r.patterns, "pattern", nil, "with redis://, the meaning of keys: KEYS=KEYSPACE or KEYS=KEYSPACE:COLUMN; may be repeated")
	flags.BoolVar(&r.verify, "verify", true, "with redis://, read all keys again when done and compare")
	flags.BoolVar(&r.verifyOnly, "verify-only", false, "with redis://, copy nothing and compare")
}

// fromRedis reports whether source is the address of a Redis server.
func fromRedis(source string) bool {
	return strings.HasPrefix(source, "redis://") || strings.HasPrefix(source, "rediss://")
}

// importRedis runs an import from a Redis database: it checks the flags, copies the counts and
// prints the result.
func importRedis(ctx context.Context, c *cli.CLI, source string, f importFlags, r redisFlags) error {
	options, patterns, err := checkRedis(source, &f, &r)
	if err != nil {
		return err
	}
	server, err := c.ConnectWaiting(f.retryFor)
	if err != nil {
		return err
	}
	defer server.Close()
	columns, err := redisColumns(ctx, server, patterns, f.about.Map)
	if err != nil {
		return err
	}
	logging.Disable() // otherwise go-redis would also print errors
	peer := redis.NewClient(options)
	defer peer.Close()
	if f.state != "" {
		unlock, err := lockState(source, f.state)
		if err != nil {
			return err
		}
		defer unlock()
	}
	from, err := findRedisPlace(ctx, c, server, peer, patterns, f, r)
	if err != nil {
		return err
	}
	bad, syncBad := func(b *bulk.BadValueError) error { return b }, func() error { return nil }
	if f.onError == onErrorSkip {
		rejects := &redisRejects{path: f.rejects}
		defer rejects.close()
		bad, syncBad = rejects.add, rejects.sync
	}
	run := bulk.NewRedisImport(bulk.RedisConfig{
		Redis: peer, Client: server, Patterns: patterns, Columns: columns, Batch: f.batch, Bad: bad, Synced: syncBad, State: f.state, From: from,
		Retry: c.Retry(f.retryFor),
	})
	m := c.StartMeter(func() cli.Sample { return cli.Sample{Rows: run.Rows(), Done: run.Keys()} })
	out := redisOutput{Source: from.Redis, Resumed: from.Keys > 0, RejectsFile: f.rejects}
	state, err := runRedis(ctx, run, r, &out)
	out.Left = notLeftOut(state.Left, f.about.Map)
	out.Expiring, out.ExpiringKeys = state.Expiring, state.ExpiringKeys
	out.Seconds = m.Stop().Seconds()
	if err != nil {
		return explainRedis(err)
	}
	missing := missingOf(state, patterns, f.about.Map)
	if r.verifyOnly {
		missing = nil
	}
	return redisDone(c, out, f, missing)
}

func explainRedis(err error) error {
	var bad *bulk.BadValueError
	if errors.As(err, &bad) {
		return fmt.Errorf("%w; mend it, or skip bad values with --on-error skip", err)
	}
	return fmt.Errorf("%w; run it again to continue", err)
}

// runRedis copies the counts, compares them, or does both, as the flags request.
func runRedis(ctx context.Context, run *bulk.RedisImport, r redisFlags, out *redisOutput) (state bulk.RedisState, err error) {
	if !r.verifyOnly {
		state, err = run.Run(ctx)
		out.Keys, out.Values, out.Ignored, out.Rejected = state.Keys, state.Values, state.Ignored, state.Bad
		if err != nil {
			return state, err
		}
	}
	if !r.verify && !r.verifyOnly {
		return state, nil
	}
	verdict, err := run.Verify(ctx)
	out.Verified = &verdict
	return state, err
}

// checkRedis checks the flags without a connection, and sets defaults.
func checkRedis(source string, f *importFlags, r *redisFlags) (*redis.Options, []*bulk.Pattern, error) {
	options, err := redis.ParseURL(source)
	if err != nil {
		return nil, nil, cli.Usagef("%s: %v", source, err)
	}
	options.ReadTimeout, options.WriteTimeout = redisTimeout, redisTimeout
	if len(r.patterns) == 0 {
		return nil, nil, cli.Usagef("an import from Redis needs --pattern, such as 'post:{id}:{column}=posts'")
	}
	var patterns []*bulk.Pattern
	for _, text := range r.patterns {
		p, err := bulk.ParsePattern(text)
		if err != nil {
			return nil, nil, cli.Usagef("%v", err)
		}
		patterns = append(patterns, p)
	}
	if !r.batchGiven {
		f.batch = redisBatchDefault
	}
	name := fmt.Sprintf("redis-%s-%d", strings.NewReplacer(":", "-", "/", "-").Replace(options.Addr), options.DB)
	if f.state == "" && !r.verifyOnly {
		f.state = name + ".progress"
	}
	if f.onError == onErrorSkip && f.rejects == "" {
		f.rejects = name + ".rejects.csv"
	}
	if f.about.Format.EmptyAsZero || f.delimiter != "," {
		return nil, nil, cli.Usagef("--delimiter and --empty-as-zero are for files")
	}
	if err := cmp.Or(f.checkValues(), f.checkDistinct()); err != nil {
		return nil, nil, err
	}
	return options, patterns, nil
}

// redisColumns returns RedisConfig.Columns: for each keyspace, a map from names in Redis to
// columns. A column has its own name and the names that --map gives it. If --map maps a name to "",
// the name has no column.
func redisColumns(ctx context.Context, server *client.Client, patterns []*bulk.Pattern, mapping []string) (map[string]map[string]string, error) {
	all, has := map[string]map[string]string{}, map[string][]string{}
	var columns []string // columns of all keyspaces
	for _, p := range patterns {
		keyspace, err := cli.FindCounters(ctx, server, p.Keyspace)
		if err != nil {
			return nil, err
		}
		p.Of(keyspace)
		if p.Column != "" {
			if err := cli.HasColumn(keyspace, p.Column); err != nil {
				return nil, err
			}
		}
		all[p.Keyspace], has[p.Keyspace] = map[string]string{}, keyspace.Columns
		for _, column := range keyspace.Columns {
			all[p.Keyspace][column] = column
			columns = append(columns, column)
		}
	}
	for _, pair := range mapping {
		name, column, ok := strings.Cut(pair, "=")
		if !ok || name == "" {
			return nil, cli.Usagef("--map takes NAME=COLUMN,…, not %q", pair)
		}
		if column != "" && !slices.Contains(columns, column) {
			return nil, cli.Usagef("no keyspace of a pattern has column %q (they have %s)", column, strings.Join(columns, ", "))
		}
		for keyspace, names := range all {
			if slices.Contains(has[keyspace], column) {
				names[name] = column
			} else if column == "" {
				delete(names, name)
			}
		}
	}
	return all, nil
}

// findRedisPlace returns the state with which the import begins: that of an earlier run, or a new
// one. It is always correct to begin at the start, because values are absolute.
func findRedisPlace(ctx context.Context, c *cli.CLI, server *client.Client, peer *redis.Client, patterns []*bulk.Pattern, f importFlags, r redisFlags) (bulk.RedisState, error) {
	info, err := peer.Info(ctx, "server").Result()
	if err != nil {
		return bulk.RedisState{}, fmt.Errorf("cannot identify the Redis server: %w", err)
	}
	cluster, err := admin.New(server).Cluster(ctx)
	if err != nil {
		return bulk.RedisState{}, fmt.Errorf("cannot read the cluster's state: %w", err)
	}
	groups := map[string]uint32{}
	for _, p := range patterns {
		if groups[p.Keyspace], err = firstGroup(ctx, server, cluster, p.Keyspace); err != nil {
			return bulk.RedisState{}, err
		}
	}
	about := bulk.RedisState{
		Redis: fmt.Sprintf("%s/%d", peer.Options().Addr, peer.Options().DB), RunID: infoLine(info, "run_id"),
		Addr: server.Addr(), Cluster: cluster.ClusterID, Patterns: r.patterns, Mapping: f.about.Map, Keyspaces: groups,
	}.Begin(bulk.RedisState{})
	if f.state == "" || r.verifyOnly {
		return about, nil
	}
	before, found, err := bulk.ReadRedisState(f.state)
	switch {
	case errors.Is(err, bulk.ErrBadRedisState):
		return about, fmt.Errorf("%w; remove it or name another --state", err)
	case err != nil || !found:
		return about, err
	case f.restart:
		return about.Begin(before), nil
	case !before.SameImport(about):
		fmt.Fprintf(c.Err, "%s is of another import (the Redis process, the server, the keyspaces, the patterns or --map differ): starting from the beginning\n", f.state)
		return about.Begin(before), nil
	case before.Place.Pattern == len(before.Patterns):
		return about.Begin(before), nil // the earlier import is complete; begin again, because there may be new keys
	}
	if before.Keys > 0 {
		fmt.Fprintf(c.Err, "going on after %s\n", cli.Counted(before.Keys, "key"))
	}
	return before, nil
}

func infoLine(info, name string) string {
	for line := range strings.Lines(info) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// redisDone prints the result of a run, and removes the progress file unless counts differ or
// values were rejected. It returns an error if counts differ from those in Redis, if values were
// rejected, or if missing is not empty.
func redisDone(c *cli.CLI, out redisOutput, f importFlags, missing []string) error {
	if err := c.Print(out, out.table); err != nil {
		return err
	}
	if len(out.Left) > 0 {
		fmt.Fprintf(c.Err, "not copied, of no column: %s; --map NAME=COLUMN copies one, NAME= leaves it out\n", listNames(out.Left))
	}
	if out.Expiring > 0 {
		fmt.Fprintf(c.Err, "%s had a time to live, which countd does not keep; the counts stay for good: %s\n",
			cli.Counted(out.Expiring, "copied key"), someOf(out.ExpiringKeys, out.Expiring))
	}
	if v := out.Verified; v != nil && v.Differ > 0 {
		return fmt.Errorf("%s of %s values differ from Redis; keys that are still written there differ for that alone", cli.Grouped(v.Differ), cli.Grouped(v.Values))
	}
	if out.Rejected > 0 {
		return fmt.Errorf("%s rejected; see %s", cli.WereCounted(out.Rejected, "value"), out.RejectsFile)
	}
	if f.state != "" {
		if err := os.Remove(f.state); err != nil {
			return fmt.Errorf("cannot remove the progress file: %w", err)
		}
	}
	if len(missing) > 0 {
		return errors.New(strings.Join(missing, "; "))
	}
	return nil
}

func (o redisOutput) table(t *cli.Table) {
	t.Row("SOURCE", "KEYS", "VALUES", "IGNORED", "REJECTED", "COMPARED", "DIFFER", "SECONDS")
	compared, differ := "-", "-"
	if o.Verified != nil {
		compared, differ = cli.Grouped(o.Verified.Values), cli.Grouped(o.Verified.Differ)
	}
	t.Row(o.Source, cli.Grouped(o.Keys), cli.Grouped(o.Values), cli.Grouped(o.Ignored), cli.Grouped(o.Rejected), compared, differ, fmt.Sprintf("%.1f", o.Seconds))
	if o.Verified == nil {
		return
	}
	for _, d := range o.Verified.Samples {
		t.Row(fmt.Sprintf("%s/%s %s: Redis has %d, countd %d", d.Keyspace, d.ID, d.Column, d.Redis, d.Countd))
	}
}

const namesShown = 5

// notLeftOut returns the names that --map does not map to "".
func notLeftOut(names bulk.Names, mapping []string) bulk.Names {
	names = maps.Clone(names)
	for _, pair := range mapping {
		if name, column, _ := strings.Cut(pair, "="); column == "" {
			delete(names, name)
		}
	}
	return names
}

// listNames returns a text of the names with the largest numbers, with these numbers.
func listNames(names bulk.Names) string {
	order := slices.SortedFunc(maps.Keys(names), func(a, b string) int {
		return cmp.Or(cmp.Compare(names[b], names[a]), strings.Compare(a, b))
	})
	var parts []string
	for _, name := range order[:min(len(order), namesShown)] {
		parts = append(parts, fmt.Sprintf("%q (%s)", name, cli.Grouped(names[name])))
	}
	if more := len(order) - namesShown; more > 0 {
		parts = append(parts, "and "+cli.Counted(more, "more name"))
	}
	return strings.Join(parts, ", ")
}

// missingOf returns a message for each pattern and each name of --map that matched no value. The
// cause is probably a mistake in the flags.
func missingOf(state bulk.RedisState, patterns []*bulk.Pattern, mapping []string) []string {
	var missing []string
	for n, p := range patterns {
		if n >= len(state.Given) || state.Given[n] == 0 {
			missing = append(missing, fmt.Sprintf("no value was copied by --pattern %q: no %s of that form has a count", p.Text, p.Types()))
		}
	}
	for _, pair := range mapping {
		if name, column, _ := strings.Cut(pair, "="); column != "" && state.Came[name] == 0 {
			missing = append(missing, fmt.Sprintf("no value was copied by --map %s: no key or field is called %q", pair, name))
		}
	}
	return missing
}

// someOf returns a text of keys, and of how many more there are. total includes keys.
func someOf(keys []string, total int64) string {
	var parts []string
	for _, key := range keys {
		parts = append(parts, strconv.Quote(key))
	}
	if more := total - int64(len(keys)); more > 0 {
		parts = append(parts, "and "+cli.Grouped(more)+" more")
	}
	return strings.Join(parts, ", ")
}

// redisRejects is the file of values that an import from Redis could not copy. The first rejected
// value creates the file. The import only appends to an existing file, because the file may have
// rejects of earlier runs, even of another import from the same Redis.
type redisRejects struct {
	path     string
	f        *os.File // nil until the first rejected value
	unsynced bool
}

const redisRejectsHeader = "reason,key,field,value\n"

func (r *redisRejects) add(b *bulk.BadValueError) error {
	if r.f == nil {
		if err := r.open(); err != nil {
			return fmt.Errorf("cannot open the rejects: %w", err)
		}
	}
	r.unsynced = true
	w := csv.NewWriter(r.f)
	w.Write([]string{b.Reason, b.Key, b.Field, b.Value}) // ignore the error: w.Error returns it below
	if w.Flush(); w.Error() != nil {
		return fmt.Errorf("cannot write the rejects: %w", w.Error())
	}
	return nil
}

// open opens the file to append to it. If a crash has cut off the last row, open ends that line
// first.
func (r *redisRejects) open() error {
	f, err := os.OpenFile(r.path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o666)
	if err != nil {
		return err
	}
	header := make([]byte, len(redisRejectsHeader))
	n, _ := f.ReadAt(header, 0) // ignore the error: a file shorter than the header is new, or not a file of rejects
	last := make([]byte, 1)
	size, err := f.Seek(0, 2)
	switch {
	case err == nil && n == 0:
		_, err = f.WriteString(redisRejectsHeader)
	case err == nil && string(header) != redisRejectsHeader:
		err = fmt.Errorf("%s: %w", r.path, bulk.ErrNotRejects)
	case err == nil:
		if _, err = f.ReadAt(last, size-1); err == nil && last[0] != '\n' {
			_, err = f.WriteString("\n")
		}
	}
	if err != nil {
		return errors.Join(err, f.Close())
	}
	r.f = f
	return nil
}

// sync makes the file and the rows added so far durable.
func (r *redisRejects) sync() error {
	if !r.unsynced {
		return nil
	}
	if err := program.SyncFile(r.f); err != nil {
		return fmt.Errorf("cannot sync the rejects: %w", err)
	}
	r.unsynced = false
	return nil
}

// close closes the file. It does not sync.
func (r *redisRejects) close() {
	if r.f != nil {
		_ = r.f.Close()
	}
}
