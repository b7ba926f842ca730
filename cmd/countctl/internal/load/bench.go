package load

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/countd/countd/client"
	"github.com/countd/countd/cmd/countctl/internal/bulk"
	"github.com/countd/countd/cmd/countctl/internal/cli"
)

// Commands returns the commands of this package.
func Commands(c *cli.CLI) []*cobra.Command {
	return []*cobra.Command{benchCommand(c)}
}

// benchIDsMax bounds the ids that a bench reads from a file.
const benchIDsMax = 50_000_000

// benchFlags holds the flags of bench. cfg has those that become fields of Config unchanged.
type benchFlags struct {
	op      string
	dist    string
	idsFrom string
	check   bool
	named   bool // --keyspace was given
	cfg     Config
}

func benchCommand(c *cli.CLI) *cobra.Command {
	var f benchFlags
	cmd := &cobra.Command{
		Use:   "bench --op read|page|incr|mixed|poll|polls|feed|seen|clear|publish|post|timeline",
		Short: "Put load on a server and measure its answers",
		Long: `Put load on a server and measure its answers.

Without --rate, each of --concurrency callers sends its next request when the previous
one is answered. With --rate, requests are due at a fixed rate whether or not the server
keeps up, and their latency counts from the time at which they were due.

With --once every increment has a number, and is repeated until its outcome is known.
--check sums the column before and after. The difference must be at least the acknowledged
increments, and at most those plus the ones of unknown outcome. Nobody else may write to
the column meanwhile.

poll and polls read everything that a user's client polls for; ids are users. feed, seen,
clear and publish create the data for polls: use --dist each and as many --requests as
--ids, so that each user gets one request. A few users have many followees. timeline reads
the newest --page posts of a user's followees, with their counts; post publishes posts.

incr, mixed and post change counts, and feed, seen, clear and publish change unread numbers. If
--keyspace is not given and the keyspace has rows, they ask for confirmation first, and
are refused without a terminal or --yes. On a server on another machine they need --yes.
The exit code is 1 if a request failed or the check does not hold.`,
		Example: "  countctl bench --op incr --concurrency 64 --duration 10s\n  countctl bench --op page --page 20 --rate 5000 --dist uniform -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			f.named = cmd.Flags().Changed("keyspace")
			return bench(cmd.Context(), c, f)
		},
	}
	c.KeyspaceFlag(cmd, &f.cfg.Keyspace)
	flags := cmd.Flags()
	flags.StringVar(&f.op, "op", string(Incr), "read (one row), page (--page rows), incr (--batch increments), mixed (pages and increments),\n"+
		"poll (one user), polls (--page users), feed (a user follows --followees and has seen their posts),\n"+
		"seen (a user reads the notices of the first of --channels), publish (a notice to it),\n"+
		"clear (a user sees the first of --dots), post (an author publishes a post) or timeline (a page of a user)")
	flags.IntVar(&f.cfg.Page, "page", 20, "ids of one page, users of one poll, posts of a timeline")
	flags.IntVar(&f.cfg.Batch, "batch", 1, "increments of one request")
	flags.StringVar(&f.cfg.Column, "column", "like", "column to increment")
	flags.BoolVar(&f.cfg.NoResults, "no-results", false, "do not request the new counts of increments")
	flags.Float64Var(&f.cfg.ReadShare, "reads", 0.9, "share of pages among mixed requests")
	flags.StringVar(&f.cfg.Consistency, "consistency", "", "consistency of reads: stale, bounded or linearizable (default: the server's)")
	flags.IntVar(&f.cfg.Concurrency, "concurrency", 64, "maximum number of requests in flight")
	flags.Float64Var(&f.cfg.Rate, "rate", 0, "requests a second (0: as fast as they are answered)")
	cli.DurationFlag(flags, &f.cfg.Duration, "duration", 10*time.Second, "duration of the load (0: until --requests)")
	flags.Int64Var(&f.cfg.Requests, "requests", 0, "maximum number of requests (0: until --duration)")
	flags.StringVar(&f.dist, "dist", string(Zipf), "how ids are chosen: zipf, uniform, hot (one id) or each (in order)")
	flags.Float64Var(&f.cfg.IDs.ZipfS, "zipf-s", 1.1, "exponent of zipf, above 1")
	flags.Uint64Var(&f.cfg.IDs.N, "ids", 1_000_000, "choose from ids 1 … N")
	flags.StringSliceVar(&f.cfg.Channels, "channels", nil, "channels that are polled, read and published to")
	flags.StringSliceVar(&f.cfg.Dots, "dots", nil, "dots that are polled")
	flags.IntVar(&f.cfg.Followees, "followees", 90, "followees of a user on average, at most 2,000")
	flags.Uint64Var(&f.cfg.Authors, "authors", 1_000_000, "choose followees from ids 1 … N; every user follows 1")
	flags.StringVar(&f.idsFrom, "ids-from", "", "choose from the ids in the column id of a CSV file instead")
	cli.DurationFlag(flags, &f.cfg.Deadline, "deadline", 0, "deadline of each request, sent to the server (0: the server's default)")
	flags.BoolVar(&f.cfg.Once, "once", false, "number the increments, and repeat those of unknown outcome until it is known")
	flags.BoolVar(&f.check, "check", false, "compare the counts with the acknowledged increments")
	flags.BoolVar(&f.cfg.Memory, "memory", false, "report the server's memory, from its metrics")
	return cmd
}

func bench(ctx context.Context, c *cli.CLI, f benchFlags) error {
	server, err := c.Connect()
	if err != nil {
		return err
	}
	defer server.Close()
	addr, err := client.ParseAddr(server.Addr())
	if err != nil {
		return cli.Usagef("%v", err)
	}
	if !isLoopback(addr) && !c.Yes {
		return cli.Usagef("%s is not on this machine, and a bench is a heavy load; give --yes to run it anyway", addr)
	}
	cfg := f.cfg
	if cfg.Token, err = c.Token(); err != nil {
		return err
	}
	if cfg.TLS, err = c.TLS.Config(); err != nil {
		return err
	}
	cfg.Addr, cfg.Timeout = addr, c.Timeout
	cfg.Op, cfg.IDs.Dist = Kind(f.op), Dist(f.dist)
	if cfg.Op.OfUsers() {
		if f.named {
			return cli.Usagef("--op %s takes no --keyspace", cfg.Op)
		}
		cfg.Keyspace = UnreadKeyspace
	}
	if err := cfg.Validate(); err != nil {
		return cli.Usagef("%v", err)
	}
	if f.check && f.idsFrom != "" {
		return cli.Usagef("--check adds up ids 1 … N, and --ids-from chooses others: leave one out")
	}
	if f.check && cfg.IDs.N > benchCheckIDsMax {
		return cli.Usagef("--check adds up ids 1 … N, at most %s of them: give fewer --ids", cli.Grouped(int64(benchCheckIDsMax)))
	}
	if err := checkBenchTarget(ctx, c, cfg, f.named); err != nil {
		return err
	}
	if f.idsFrom != "" {
		if cfg.IDs.List, err = idsFromFile(ctx, f.idsFrom); err != nil {
			return err
		}
	}
	report, err := runBench(ctx, c, cfg, f.check)
	if report == nil {
		return err
	}
	if err := c.Print(report, func(t *cli.Table) { benchRows(t, report) }); err != nil {
		return err
	}
	switch {
	case err != nil:
		return err
	case report.Check != nil && !report.Check.Holds:
		return fmt.Errorf("the counts grew by %s, and %s to %s increments were done",
			cli.Grouped(report.Check.Counted), cli.Grouped(report.Check.Least), cli.Grouped(report.Check.Most))
	case report.Failed > 0:
		return fmt.Errorf("%s of %s requests failed", cli.Grouped(report.Failed), cli.Grouped(report.Failed+report.Requests))
	}
	return nil
}

// runBench runs the load. If check is set, it sums the column before and after the load. If ctx
// ended the load early or the second sum failed, it returns a report and an error.
func runBench(ctx context.Context, c *cli.CLI, cfg Config, check bool) (*benchReport, error) {
	server, err := c.ConnectFor(client.Retry{})
	if err != nil {
		return nil, err
	}
	defer server.Close()
	var before int64
	if check {
		if before, err = sumOf(ctx, server, &cfg); err != nil {
			return nil, err
		}
	}
	run, err := Run(ctx, cfg)
	if run == nil {
		return nil, err
	}
	report := &benchReport{Report: run}
	if !check || err != nil {
		return report, err
	}
	after, err := sumOf(ctx, server, &cfg)
	if err == nil {
		report.Check = checkOf(after-before, run)
	}
	return report, err
}

// checkBenchTarget returns an error for an unknown keyspace or column. It asks for confirmation if
// the bench would change a keyspace that has rows, unless the command line names a keyspace.
func checkBenchTarget(ctx context.Context, c *cli.CLI, cfg Config, named bool) error {
	server, err := c.Connect()
	if err != nil {
		return err
	}
	defer server.Close()
	keyspace, err := cli.FindKeyspace(ctx, server, cfg.Keyspace)
	if err != nil {
		return err
	}
	changed := changedBy(&cfg)
	if changed == "" {
		return nil
	}
	if !cfg.Op.OfUsers() {
		if err := cli.HasColumn(keyspace, cfg.Column); err != nil {
			return err
		}
	}
	if named || c.Yes {
		return nil
	}
	rows, err := cli.RowsOf(ctx, server, changed)
	if err != nil {
		return fmt.Errorf("%w; name the keyspace by --keyspace, or give --yes, to change it all the same", err)
	}
	if rows == 0 {
		return nil
	}
	if !cli.IsTerminal(c.In) || !cli.IsTerminal(c.Err) {
		return cli.Usagef("keyspace %s holds %s, which this bench would change; name one by --keyspace, or give --yes", changed, cli.Counted(rows, "row"))
	}
	return c.Confirm(fmt.Sprintf("Change keyspace %s, which holds %s?", changed, cli.Counted(rows, "row")))
}

// changedBy returns the keyspace that a load changes, or "" if it changes none.
func changedBy(cfg *Config) string {
	switch cfg.Op {
	case Incr, Mixed:
		return cfg.Keyspace
	case Feed:
		return "feed"
	case Post:
		return "users"
	case Seen, Clear:
		return UnreadKeyspace
	case Publish:
		return "board"
	}
	return ""
}

// isLoopback reports whether an address is localhost or a loopback IP address. It does not resolve
// other names.
func isLoopback(addr *url.URL) bool {
	host := addr.Hostname()
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}

func idsFromFile(ctx context.Context, path string) ([]uint64, error) {
	in, err := bulk.OpenCSV(ctx, path)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	column := slices.Index(in.Header(), "id")
	if column < 0 {
		return nil, in.Bad("the header has no column id")
	}
	var ids []uint64
	for {
		record, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		id, err := strconv.ParseUint(record[column], 10, 64)
		if err != nil {
			return nil, in.Bad("%q is not an unsigned 64-bit integer", record[column])
		}
		if ids = append(ids, id); len(ids) > benchIDsMax {
			return nil, fmt.Errorf("%s holds more than %d ids; use a part of it", path, benchIDsMax)
		}
	}
	if len(ids) == 0 {
		return nil, fmt.Errorf("%s holds no ids", path)
	}
	return ids, nil
}

func benchRows(t *cli.Table, r *benchReport) {
	loop := fmt.Sprintf("closed loop, %d in flight", r.Concurrency)
	if r.Rate > 0 {
		loop = fmt.Sprintf("open loop at %g requests/s, %d in flight at most", r.Rate, r.Concurrency)
	}
	t.Row("load", fmt.Sprintf("%s of %s, %s over %s ids, %s", r.Op, r.Keyspace, r.Dist, cli.Grouped(r.IDs), loop))
	t.Row("time", fmt.Sprintf("%.2f s", r.Seconds))
	t.Row("requests", fmt.Sprintf("%s (%s/s)", cli.Grouped(r.Requests), cli.Grouped(int64(r.RequestsPerSecond))))
	t.Row("ops", fmt.Sprintf("%s (%s/s)", cli.Grouped(r.Ops), cli.Grouped(int64(r.OpsPerSecond))))
	if r.Rate > 0 {
		t.Row("unsent", cli.Grouped(r.Unsent))
	}
	for _, code := range slices.Sorted(maps.Keys(r.Errors)) {
		t.Row("failed: "+code, cli.Grouped(r.Errors[code]))
	}
	if r.Resent > 0 {
		t.Row("sent again", cli.Grouped(r.Resent))
	}
	if m := r.Memory; m != nil {
		t.Row("server memory", fmt.Sprintf("%.0f MB before, %.0f MB at most", float64(m.BeforeBytes)/1e6, float64(m.MaxBytes)/1e6))
	}
	if k := r.Check; k != nil {
		t.Row("counts grew by", fmt.Sprintf("%s; acknowledged %s, unknown %s", cli.Grouped(k.Counted), cli.Grouped(k.Least), cli.Grouped(k.Most-k.Least)))
	}
	t.Gap()
	t.Row("MICROSECONDS", "P50", "P90", "P99", "P99.9", "P99.99", "MAX", "MEAN")
	percentileRows(t, "all", &r.LatencyUS)
	percentileRows(t, "pages", r.ReadLatencyUS)
	percentileRows(t, "increments", r.IncrLatencyUS)
	percentileRows(t, "from sending", r.AnswerUS)
	percentileRows(t, "client late", r.LateUS)
}

func percentileRows(t *cli.Table, name string, p *Percentiles) {
	if p == nil {
		return
	}
	cells := []any{name}
	for _, us := range []float64{p.P50, p.P90, p.P99, p.P999, p.P9999, p.Max, p.Mean} {
		cells = append(cells, fmt.Sprintf("%.0f", us))
	}
	t.Row(cells...)
}

// benchCheckIDsMax bounds the number of ids for --check, which reads all their counts.
const benchCheckIDsMax = 1_000_000

type benchReport struct {
	*Report
	Check *benchCheck `json:"check,omitempty"`
}

// benchCheck compares the growth of the counts with the answers to the increments. It is meaningful
// only if no other client writes to the column.
type benchCheck struct {
	Counted int64 `json:"counted"` // growth of the sum of the counts
	Least   int64 `json:"least"`   // number of acknowledged increments
	Most    int64 `json:"most"`    // number of increments that were acknowledged or have an unknown outcome
	Holds   bool  `json:"holds"`
}

// sumOf sums the bench's column over ids 1 … N.
func sumOf(ctx context.Context, server *client.Client, cfg *Config) (int64, error) {
	var sum int64
	ids := make([]client.ID, 0, client.GetIDsMax)
	for id := uint64(1); id <= cfg.IDs.N; id++ {
		ids = append(ids, client.Number(id))
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

// checkOf compares the growth of the counts with the answers in a report.
func checkOf(grown int64, r *Report) *benchCheck {
	c := &benchCheck{Counted: grown, Least: r.Increments, Most: r.Increments + r.UnknownOps}
	c.Holds = c.Least <= c.Counted && c.Counted <= c.Most
	return c
}
