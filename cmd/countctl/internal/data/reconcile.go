package data

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/countd/countd/client"
	"github.com/countd/countd/client/admin"
	"github.com/countd/countd/cmd/countctl/internal/bulk"
	"github.com/countd/countd/cmd/countctl/internal/cli"
)

type reconcileFlags struct {
	keyspace, source, at string
	postgres, query      string
	quiesced, dryRun     bool
	maxCorrection        uint64
	report               string
	retryFor             time.Duration
}

// worstShown bounds the drifts in the output, which has the largest ones.
const worstShown = 20

// Errors of a run that could not compare or correct all rows.
var (
	errUnsettled   = errors.New("rows had messages at each look")
	errNotQuiesced = errors.New("something was written meanwhile")
	errStillDiffer = errors.New("rows still differ")
)

// driftOutput is one column of a row that differs from the truth.
type driftOutput struct {
	ID     client.ID `json:"id"`
	Column string    `json:"column"`
	Want   int64     `json:"want"`
	Row    int64     `json:"row"`
	Drift  int64     `json:"drift"` // Want − Row
}

type reconcileOutput struct {
	Keyspace  string        `json:"keyspace"`
	Compared  int           `json:"compared"`
	Differ    int           `json:"differ"`
	Histogram []bulk.Bucket `json:"histogram"`
	Worst     []driftOutput `json:"worst"`
	Unsettled []client.ID   `json:"unsettled"`
	Corrected int           `json:"corrected"` // rows
	Repeated  int           `json:"repeated"`  // rows that were not corrected, because their drift changed in the second comparison, for example by another run
	Report    string        `json:"report,omitempty"`
}

func reconcileCommand(c *cli.CLI) *cobra.Command {
	var f reconcileFlags
	cmd := &cobra.Command{
		Use:   "reconcile [TRUTH.csv[.gz]]",
		Short: "Compare counts with a truth, and correct them by the difference",
		Long: `Compare counts with a truth that was counted elsewhere, and correct them by the difference.

The file has the column id and columns of the keyspace; --postgres and --query take a
query's rows in its place. A row that it does not have is 0.

With --source, the truth is what the messages below the positions --at give, such as 0=812 or
812. Messages after them are read from the queue again, so writes may continue. Without a
source, --quiesced takes the rows as they are, and refuses to go on if any was written
meanwhile.

It shows how many rows differ, by how much, and the worst, and asks before it corrects a
column by more than --max-correction. What is missing is added, so that counts that come
meanwhile stay. A run that was interrupted can be repeated at once.`,
		Example: `  countctl reconcile truth.csv --keyspace posts --source likes --at 0=812 --dry-run
  countctl reconcile --postgres postgres://127.0.0.1/app --query 'SELECT post_id AS id, count(*) AS "like" FROM likes GROUP BY 1' --keyspace posts --quiesced`,
		RunE: func(cmd *cobra.Command, args []string) error {
			at, err := f.check(args)
			if err != nil {
				return err
			}
			return runReconcile(cmd.Context(), c, args, f, at)
		},
	}
	c.KeyspaceFlag(cmd, &f.keyspace)
	flags := cmd.Flags()
	flags.StringVar(&f.source, "source", "", "the source that counts the rows")
	flags.StringVar(&f.at, "at", "", "positions of the truth by partition, as 0=812,1=904; a single number is the position of partition 0")
	flags.StringVar(&f.postgres, "postgres", "", "URL or DSN of the database that has the truth; PGPASSWORD has the password")
	flags.StringVar(&f.query, "query", "", "with --postgres, the query whose rows are the truth")
	flags.BoolVar(&f.quiesced, "quiesced", false, "compare without a source, and refuse to go on if anything was written meanwhile")
	flags.BoolVar(&f.dryRun, "dry-run", false, "compare only")
	flags.Uint64Var(&f.maxCorrection, "max-correction", 0, "largest correction of a column that needs no confirmation")
	flags.StringVar(&f.report, "report", "", "write all differences to a CSV file")
	cli.RetryFlag(flags, &f.retryFor)
	return cmd
}

// check checks the flags, and returns the positions of the truth, by partition.
func (f *reconcileFlags) check(args []string) (map[uint32]bulk.SourcePosition, error) {
	switch {
	case (len(args) == 1) == (f.postgres != ""):
		return nil, cli.Usagef("reconcile takes the truth from a file, or from --postgres")
	case (f.postgres == "") != (f.query == ""):
		return nil, cli.Usagef("--postgres and --query belong together")
	case (f.source != "") == f.quiesced:
		return nil, cli.Usagef("reconcile needs --source, or --quiesced")
	case (f.source != "") != (f.at != ""):
		return nil, cli.Usagef("--source and --at belong together")
	case f.at == "":
		return nil, nil
	}
	at := map[uint32]bulk.SourcePosition{}
	for _, part := range strings.Split(f.at, ",") {
		partition, text, both := strings.Cut(part, "=")
		if !both {
			partition, text = "0", part
		}
		number, err := strconv.ParseUint(partition, 10, 32)
		if err != nil {
			return nil, cli.Usagef("--at: %q is no partition", partition)
		}
		if _, twice := at[uint32(number)]; twice {
			return nil, cli.Usagef("--at has partition %d twice", number)
		}
		if at[uint32(number)], err = bulk.ParsePosition(text); err != nil {
			return nil, cli.Usagef("--at: %v", err)
		}
	}
	return at, nil
}

func runReconcile(ctx context.Context, c *cli.CLI, args []string, f reconcileFlags, at map[uint32]bulk.SourcePosition) error {
	if f.report != "" {
		if len(args) == 1 && cli.SameFile(f.report, args[0]) {
			return cli.Usagef("--report must not be the file that is read")
		}
		if err := c.RefuseExisting(f.report); err != nil {
			return err
		}
	}
	server, err := c.ConnectWaiting(f.retryFor)
	if err != nil {
		return err
	}
	defer server.Close()
	keyspace, err := cli.FindCounters(ctx, server, f.keyspace)
	if err != nil {
		return err
	}
	given, err := readTruth(ctx, args, f, keyspace)
	if err != nil {
		return err
	}
	if i := slices.IndexFunc(given.columns, func(column string) bool { return !keyspace.Sums(column) }); i >= 0 {
		return fmt.Errorf("column %s: its settings may change increments, so reconcile cannot correct it", given.columns[i])
	}
	r := &reconciled{server: server, keyspace: f.keyspace, source: f.source, truth: given}
	before, err := r.digests(ctx, f.quiesced)
	if err == nil {
		err = r.scan(ctx)
	}
	if err != nil {
		return err
	}
	found, err := bulk.Compare(ctx, r, given.rows, at)
	if err != nil {
		return fmt.Errorf("cannot compare: %w", err)
	}
	if err := r.unchanged(ctx, before); err != nil {
		return err
	}
	out := r.output(found, f)
	if err := writeReport(f.report, found.Drifts, given.columns); err != nil {
		return err
	}
	if !f.dryRun && len(found.Drifts) > 0 {
		if err := allowCorrections(c, found, f.maxCorrection); err != nil {
			return errors.Join(err, c.Print(out, out.table))
		}
		if err = r.correct(ctx, found, before, &out); err == nil {
			err = stillDiffer(ctx, found)
		}
	}
	err = errors.Join(err, c.Print(out, out.table))
	if len(found.Unsettled) > 0 {
		err = errors.Join(err, fmt.Errorf("%w: %s not compared; pause the source for a moment, and run it again", errUnsettled, cli.WereCounted(len(found.Unsettled), "row")))
	}
	return err
}

// stillDiffer compares the corrected rows once more, and returns an error if any differs. A row can
// differ if a message set a value, or reached a floor, at the time of the correction.
func stillDiffer(ctx context.Context, found *bulk.Result) error {
	left, err := found.Again(ctx)
	if err != nil {
		return fmt.Errorf("cannot compare the corrected rows again: %w", err)
	}
	if left.Differ > 0 || len(left.Unsettled) > 0 {
		return fmt.Errorf("%w: %d of the rows to correct, and %d had messages at each look; run it again", errStillDiffer, left.Differ, len(left.Unsettled))
	}
	return nil
}

// allowCorrections asks for confirmation if any drift exceeds the bound unasked.
func allowCorrections(c *cli.CLI, found *bulk.Result, unasked uint64) error {
	largest := bulk.Largest(found.Drifts)
	if largest <= unasked {
		return nil
	}
	return c.ConfirmRisk(fmt.Sprintf("Correct %s of rows, by up to %d?", cli.Counted(len(found.Drifts), "column"), largest))
}

// reconciled reads and corrects the rows of a cluster. It implements bulk.DriftReader and
// bulk.DriftWriter.
type reconciled struct {
	server           *client.Client
	keyspace, source string
	truth            *truth
}

// scan reads all rows of the keyspace. If the truth lacks a row, scan adds the row to the truth
// with counts of 0.
func (r *reconciled) scan(ctx context.Context) error {
	return cli.Scan(ctx, r.server, r.keyspace, r.truth.columns, client.ReadOptions{Consistency: "linearizable"}, func(page client.Page) error {
		for _, row := range page.Rows {
			r.truth.rows.Row(row.ID)
		}
		return nil
	})
}

// unchanged returns an error if the shards no longer have the given digests. With --source it
// returns nil, because a source may change the rows.
func (r *reconciled) unchanged(ctx context.Context, digests map[uint32]string) error {
	now, err := r.digests(ctx, r.source == "")
	if err == nil && !maps.Equal(digests, now) {
		err = fmt.Errorf("%w: stop the writers, or compare with --source", errNotQuiesced)
	}
	return err
}

// digests returns the digest of each shard, from the replica with the highest applied index. If
// wanted is false, it returns an empty map.
func (r *reconciled) digests(ctx context.Context, wanted bool) (map[uint32]string, error) {
	found := map[uint32]string{}
	if !wanted {
		return found, nil
	}
	all, err := admin.New(r.server).Digests(ctx)
	if err != nil {
		return nil, fmt.Errorf("cannot read the digests: %w", err)
	}
	for _, group := range all {
		if group.Keyspace != r.keyspace {
			continue
		}
		furthest := uint64(0)
		for _, replica := range group.Replicas {
			if replica.AppliedIndex >= furthest {
				furthest, found[group.ID] = replica.AppliedIndex, replica.Digest
			}
		}
		if found[group.ID] == "" {
			return nil, fmt.Errorf("no replica of shard %d of %s tells its digest", group.Shard, r.keyspace)
		}
	}
	return found, nil
}

// Past implements bulk.DriftReader.
func (r *reconciled) Past(ctx context.Context, partition uint32, from bulk.SourcePosition) ([]bulk.Event, bulk.SourcePosition, error) {
	past, err := admin.New(r.server).Past(ctx, r.source, r.keyspace, partition, admin.SourcePosition(from.String()))
	if err != nil {
		return nil, from, fmt.Errorf("cannot read messages of source %s again: %w", r.source, err)
	}
	next, err := bulk.ParsePosition(string(past.Next))
	if err != nil {
		return nil, from, err
	}
	var events []bulk.Event
	for _, e := range past.Events {
		at, err := bulk.ParsePosition(string(e.Position))
		if err != nil {
			return nil, from, err
		}
		set := len(e.Set) > 0
		for _, count := range append(e.Add, e.Set...) {
			if column := slices.Index(r.truth.columns, count.Column); column >= 0 {
				events = append(events, bulk.Event{Position: at, ID: e.ID, Column: column, Set: set, Value: count.Value, Floor: e.Floor})
			}
		}
	}
	return events, next, nil
}

// Rows implements bulk.DriftReader.
func (r *reconciled) Rows(ctx context.Context, ids []client.ID) ([]bulk.Row, map[int][]bulk.Window, error) {
	if r.source == "" {
		out := make([]bulk.Row, 0, len(ids))
		for some := range slices.Chunk(ids, client.GetIDsMax) {
			rows, err := r.server.GetMany(ctx, r.keyspace, some, r.truth.columns, client.ReadOptions{Consistency: "linearizable"})
			if err != nil {
				return nil, nil, fmt.Errorf("cannot read rows: %w", err)
			}
			for i := range rows {
				out = append(out, r.row(&rows[i], 0))
			}
		}
		return out, nil, nil
	}
	answer, err := admin.New(r.server).SourceRows(ctx, r.source, r.keyspace, ids)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot read rows: %w", err)
	}
	out, shards := make([]bulk.Row, len(ids)), map[int][]bulk.Window{}
	for i := range answer.Rows {
		out[i] = r.row(&answer.Rows[i].Row, answer.Rows[i].Shard)
	}
	for shard, windows := range answer.Shards {
		for _, w := range windows {
			from, err1 := bulk.ParsePosition(string(w.From))
			to, err2 := bulk.ParsePosition(string(w.To))
			if err := errors.Join(err1, err2); err != nil {
				return nil, nil, err
			}
			shards[shard] = append(shards[shard], bulk.Window{Partition: w.Partition, From: from, To: to})
		}
	}
	return out, shards, nil
}

func (r *reconciled) row(row *client.Row, shard int) bulk.Row {
	out := bulk.Row{ID: row.ID, Counts: make([]int64, len(r.truth.columns)), Shard: shard}
	for i, column := range r.truth.columns {
		out.Counts[i], _ = row.Counts.Get(column)
	}
	return out
}

// Wait implements bulk.DriftReader.
func (r *reconciled) Wait(ctx context.Context) error { return cli.Pause(ctx, 100*time.Millisecond) }

// correct corrects the rows that have the same drift in two comparisons. Between the comparisons,
// it writes a fence against late corrections of earlier runs. found is the result of the first
// comparison. digests has the digests from before that comparison.
func (r *reconciled) correct(ctx context.Context, found *bulk.Result, digests map[uint32]string, out *reconcileOutput) error {
	if err := r.unchanged(ctx, digests); err != nil { // check again, because the operator may have needed long to answer the question
		return err
	}
	run := bulk.NewCorrection(r, time.Now())
	if err := run.Fence(ctx, found.Drifts); err != nil {
		return fmt.Errorf("cannot begin to correct: %w", err)
	}
	digests, err := r.digests(ctx, r.source == "") // read them again, because the fence may change digests
	if err != nil {
		return err
	}
	drifts, err := found.Still(ctx)
	if err != nil {
		return fmt.Errorf("cannot compare once more: %w", err)
	}
	if err := r.unchanged(ctx, digests); err != nil {
		return err
	}
	out.Repeated = bulk.Rows(found.Drifts) - bulk.Rows(drifts)
	if out.Corrected, err = run.Correct(ctx, drifts); err != nil {
		return fmt.Errorf("cannot correct: %w; run it again to correct the rest", err)
	}
	return nil
}

// Add implements bulk.DriftWriter. All runs use the same producer name for a column.
func (r *reconciled) Add(ctx context.Context, column int, number uint64, adds []bulk.Drift) error {
	name := r.truth.columns[column]
	ops := make([]client.Op, len(adds))
	for i, d := range adds {
		ops[i] = client.Op{ID: d.ID, Cells: client.Counts{{Column: name, Value: d.Add}}}
	}
	of := sha256.Sum256([]byte(name)) // a hash, because the name of the column may be too long for a producer's name
	_, err := admin.New(r.server).CorrectMany(ctx, r.keyspace, ops, client.WriteOptions{
		Quiet: true, Producer: "countctl reconcile " + hex.EncodeToString(of[:16]), Seq: number,
	})
	if refused := new(client.Error); errors.As(err, &refused) && refused.Code == "idempotency_expired" {
		return fmt.Errorf("%w: %w", bulk.ErrOvertaken, err)
	}
	return err
}

func (r *reconciled) output(found *bulk.Result, f reconcileFlags) reconcileOutput {
	out := reconcileOutput{
		Keyspace: f.keyspace, Compared: found.Compared - len(found.Unsettled), Differ: found.Differ,
		Histogram: bulk.Histogram(found.Drifts), Worst: []driftOutput{}, Unsettled: []client.ID{}, Report: f.report,
	}
	for _, d := range bulk.Worst(found.Drifts, worstShown) {
		out.Worst = append(out.Worst, driftOutput{ID: d.ID, Column: r.truth.columns[d.Column], Want: d.Want, Row: d.Row, Drift: d.Add})
	}
	out.Unsettled = append(out.Unsettled, found.Unsettled...)
	return out
}

func (o reconcileOutput) table(t *cli.Table) {
	t.Row("KEYSPACE", "COMPARED", "DIFFER", "CORRECTED", "REPEATED", "UNSETTLED")
	t.Row(o.Keyspace, cli.Grouped(o.Compared), cli.Grouped(o.Differ), cli.Grouped(o.Corrected), cli.Grouped(o.Repeated), cli.Grouped(len(o.Unsettled)))
	if len(o.Worst) == 0 {
		return
	}
	t.Row()
	t.Row("OFF BY", "TOO MUCH", "TOO FEW")
	for _, b := range o.Histogram {
		t.Row(fmt.Sprintf("%d to %d", b.From, b.To), cli.Grouped(b.Above), cli.Grouped(b.Below))
	}
	t.Row()
	t.Row("ID", "COLUMN", "WANT", "ROW", "DRIFT")
	for _, d := range o.Worst {
		t.Row(d.ID.String(), d.Column, strconv.FormatInt(d.Want, 10), strconv.FormatInt(d.Row, 10), fmt.Sprintf("%+d", d.Drift))
	}
}

func writeReport(path string, drifts []bulk.Drift, columns []string) error {
	if path == "" {
		return nil
	}
	out, err := bulk.CreateCSV(path)
	if err != nil {
		return err
	}
	defer out.Abort()
	err = out.Texts("id", "column", "want", "row", "drift")
	for _, d := range drifts {
		err = cmp.Or(err, out.Texts(d.ID.String(), columns[d.Column], strconv.FormatInt(d.Want, 10), strconv.FormatInt(d.Row, 10), strconv.FormatInt(d.Add, 10)))
	}
	if err != nil {
		return err
	}
	return out.Commit()
}
