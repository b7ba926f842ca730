package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/countd/countd/client"
	"github.com/countd/countd/cmd/countctl/internal/csvfile"
	"github.com/countd/countd/cmd/countctl/internal/csvimport"
)

// Defaults of an import. On 2 busy cores shared with a one-node server, 1,000
// rows with 4 requests in flight brought 250,000 to 310,000 rows/s, 2,000 with 8
// brought 480,000 to 530,000, and 5,000 with 8 some 15 % more, for bodies and
// pauses of more than twice the size.
const (
	importBatchDefault = 2000
	importLanesDefault = 8
)

// streamName stands for standard input or output among file names.
const streamName = "-"

// What --on-error takes.
const (
	onErrorStop = "stop"
	onErrorSkip = "skip"
)

// importFlags are the flags of import.
type importFlags struct {
	kind     string // of csvimport
	keyspace string
	mapping  []string
	idColumn string
	onError  string
	rejects  string
	state    string
	restart  bool
	batch    int
	inFlight int
	retryFor time.Duration
	events   csvimport.EventColumns // of replay, as is speed
	speed    float64                // times real time; 0 does not wait
}

// importOutput is what import prints as JSON.
type importOutput struct {
	File          string  `json:"file"`
	Keyspace      string  `json:"keyspace"`
	Rows          int64   `json:"rows"`                    // acknowledged, those of the run before included
	Rejected      int64   `json:"rejected"`                // likewise, with those of Overflows
	DoneBefore    bool    `json:"done_before,omitempty"`   // of increments: there was nothing left to add
	RejectsFile   string  `json:"rejects_file,omitempty"`  // where they are
	ResumedAfter  int64   `json:"resumed_after,omitempty"` // line that the run before had come to
	Seconds       float64 `json:"seconds"`                 // of this run
	RowsPerSecond float64 `json:"rows_per_second"`         // of this run

	Overflows csvimport.Overflows `json:"overflows,omitzero"` // of increments, those of the run before included
}

func (c *cli) importCommand() *cobra.Command {
	var f importFlags
	var r redisFlags
	var add bool
	cmd := &cobra.Command{
		Use:   "import FILE.csv[.gz]|-|redis://HOST:PORT/DB",
		Short: "Set, or add, the rows of a CSV file; or copy a Redis",
		Long: `Set the rows of a CSV file with a header, plain or gzipped.

Values are absolute: to run it again changes nothing, and of several rows with
one id the last one wins. A run that stopped, by whatever cause, goes on where it
stopped when it is run again; it keeps its place in FILE.progress until it is
done. Standard input cannot be read again, so there is no going on with it.

With --add values are increments, and each row counts once, however often the
command or the server is killed and the command is run again. Its place is in
FILE.add-progress, which stays there: it is what keeps a file that is done from
being added twice, unless --restart is given. Rows whose sum does not fit a
signed 64-bit integer are not added; that file counts them and names their ids,
and they are rejected rows, in this run and when it is run again.

A bad row stops the import with its line, as a sum that does not fit does; with
--on-error skip a bad row goes to FILE.rejects.csv with line and reason. With
rejected rows the exit code is 1.

From redis:// it copies counts of the keys that each --pattern names: strings, or
columns of hashes. --map says what they are called there, NAME=COLUMN; NAME= is not
copied. When it is done it reads all keys again and compares them. It goes on where
it stopped, by redis-HOST-PORT-DB.progress, unless Redis was restarted since.`,
		Example: `  countctl import posts.csv.gz --map reposts=repost,comments=comment,likes=like
  countctl import yesterday.csv --add
  countctl import redis://127.0.0.1:6379/0 --pattern 'like:{id}=posts:like' --pattern 'post:{id}=posts' --map reposts=repost`,
		Args: exactly(1, "FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if fromRedis(args[0]) {
				if add {
					return usagef("--add is for files: a Redis says what its counts are, not what came to them")
				}
				r.batchGiven = cmd.Flags().Changed("batch")
				return c.importRedis(cmd.Context(), args[0], f, r)
			}
			if len(r.patterns) > 0 || r.verifyOnly {
				return usagef("--pattern and --verify-only are for redis://")
			}
			if add {
				f.kind = csvimport.KindAdd
				return c.addFile(cmd.Context(), args[0], f)
			}
			return c.importFile(cmd.Context(), args[0], f)
		},
	}
	f.register(cmd, "id")
	r.register(cmd)
	flags := cmd.Flags()
	flags.StringSliceVar(&f.mapping, "map", nil, "columns of the file and of the keyspace, FILE=KEYSPACE,… (when not given, those of the same name)")
	flags.BoolVar(&add, "add", false, "add the values to what is there, each row once")
	return cmd
}

// register adds the flags that import and replay share.
func (f *importFlags) register(cmd *cobra.Command, idColumn string) {
	keyspaceFlag(cmd, &f.keyspace)
	flags := cmd.Flags()
	flags.StringVar(&f.idColumn, "id-column", idColumn, "column of the file that holds the id")
	flags.StringVar(&f.onError, "on-error", onErrorStop, "what a bad row does: stop or skip")
	flags.StringVar(&f.rejects, "rejects", "", "file for skipped rows (default FILE.rejects.csv)")
	flags.StringVar(&f.state, "state", "", "file that keeps the place (default beside FILE)")
	flags.BoolVar(&f.restart, "restart", false, "begin at the first row whatever was done before")
	flags.IntVar(&f.batch, "batch", importBatchDefault, "rows of one request, at most 10,000")
	flags.IntVar(&f.inFlight, "in-flight", importLanesDefault, "requests in flight, at most 64")
	flags.DurationVar(&f.retryFor, "retry-for", retryForDefault, "how long to try a request again while the server is busy or gone")
}

// stateSuffix makes the default name of a progress file, one for each kind: what
// was added must not be forgotten for what was set.
func (f *importFlags) stateSuffix() string {
	switch f.kind {
	case csvimport.KindAdd:
		return ".add-progress"
	case csvimport.KindEvents:
		return ".replay-progress"
	}
	return ".progress"
}

// again says how rows that were rejected are brought in.
func (f *importFlags) again() string {
	switch f.kind {
	case csvimport.KindAdd:
		return "import that with --add"
	case csvimport.KindEvents:
		return "replay that"
	}
	return "import that"
}

// rejectsFile is where the rejected rows are, of this run or of the one before.
func (f *importFlags) rejectsFile(before csvimport.State, rejected int64) string {
	if rejected == 0 {
		return ""
	}
	return cmp.Or(f.rejects, before.Rejects)
}

// check finds what is wrong with the flags alone and fills in the file names.
func (f *importFlags) check(path string) error {
	if f.onError != onErrorStop && f.onError != onErrorSkip {
		return usagef("--on-error is stop or skip, not %q", f.onError)
	}
	if f.batch < 1 || f.batch > client.WriteOpsMax {
		return usagef("--batch is 1 to %d, not %d", client.WriteOpsMax, f.batch)
	}
	if f.inFlight < 1 || f.inFlight > csvimport.LanesMax {
		return usagef("--in-flight is 1 to %d, not %d", csvimport.LanesMax, f.inFlight)
	}
	skip := f.onError == onErrorSkip
	if !skip && f.rejects != "" {
		return usagef("--rejects needs --on-error skip")
	}
	if path == streamName {
		if f.state != "" || skip && f.rejects == "" {
			return usagef("with standard input, --on-error skip needs --rejects, and --state cannot be kept")
		}
		return nil
	}
	if f.state == "" {
		f.state = path + f.stateSuffix()
	}
	if skip && f.rejects == "" {
		f.rejects = strings.TrimSuffix(strings.TrimSuffix(path, ".gz"), ".csv") + ".rejects.csv"
	}
	if skip && filepath.Clean(f.rejects) == filepath.Clean(path) {
		return usagef("--rejects must not be the file that is read")
	}
	return nil
}

// importFile runs one import from the flags to the summary.
func (c *cli) importFile(ctx context.Context, path string, f importFlags) error {
	if err := f.check(path); err != nil {
		return err
	}
	var m *meter
	server, err := c.connectWaiting(f.retryFor, &m)
	if err != nil {
		return err
	}
	defer server.Close()
	in, err := c.openCSV(path)
	if err != nil {
		return err
	}
	defer in.Close()
	columns, err := mapColumns(ctx, server, in, f)
	if err != nil {
		return err
	}
	from, err := c.findPlace(ctx, server, path, f, columns)
	if err != nil {
		return err
	}
	waiting := waitNotes{out: c.err}
	run, err := csvimport.New(csvimport.Config{
		Client: server, Keyspace: f.keyspace, IDColumn: f.idColumn, Columns: columns,
		BatchRows: f.batch, Lanes: f.inFlight, Rejects: f.rejects, State: f.state, From: from,
		Retry: client.Retry{For: retryFlag(f.retryFor), OnWait: func(err error, _ time.Duration) { waiting.note(m, err) }},
	}, in)
	if err != nil {
		return err
	}
	m = c.startMeter(func() sample {
		return sample{rows: from.Position.Rows + run.RowsAcked(), done: in.BytesRead(), total: in.Size()}
	})
	summary, err := run.Run(ctx)
	took := m.stop()
	if err != nil {
		return explainImport(err, path, f, summary)
	}
	return c.importDone(importOutput{
		File: path, Keyspace: f.keyspace, Rows: summary.Rows,
		Rejected: summary.Rejected, RejectsFile: f.rejectsFile(from, summary.Rejected),
		ResumedAfter: from.Position.Line, Seconds: took.Seconds(),
		RowsPerSecond: float64(perSecond(run.RowsAcked(), took)),
	}, f)
}

// importDone prints what a run came to. It returns an error when rows were
// rejected.
func (c *cli) importDone(out importOutput, f importFlags) error {
	if err := c.print(out, out.table); err != nil {
		return err
	}
	if out.Rejected == 0 {
		return nil
	}
	text := rowsWere(out.Rejected) + " rejected"
	if out.Rejected > out.Overflows.Rows() {
		text += fmt.Sprintf("; mend what is in %s and %s", out.RejectsFile, f.again())
	}
	if out.Overflows.Rows() > 0 {
		text += "; " + out.Overflows.String()
	}
	return errors.New(text)
}

func (o importOutput) table(t *table) {
	t.row("FILE", "KEYSPACE", "ROWS", "REJECTED", "SECONDS", "ROWS/S")
	t.row(o.File, o.Keyspace, grouped(o.Rows), grouped(o.Rejected), fmt.Sprintf("%.1f", o.Seconds), grouped(int64(o.RowsPerSecond)))
}

func (c *cli) openCSV(path string) (*csvfile.Reader, error) {
	if path == streamName {
		return csvfile.NewReader("standard input", c.in)
	}
	return csvfile.Open(path)
}

// mapColumns reads --map and checks it against the keyspace.
func mapColumns(ctx context.Context, server *client.Client, in *csvfile.Reader, f importFlags) ([]csvimport.Column, error) {
	keyspace, err := findKeyspace(ctx, server, f.keyspace)
	if err != nil {
		return nil, err
	}
	var columns []csvimport.Column
	for _, pair := range f.mapping {
		from, to, ok := strings.Cut(pair, "=")
		if !ok || from == "" || to == "" {
			return nil, usagef("--map takes FILE=KEYSPACE,…, not %q", pair)
		}
		if !slices.Contains(keyspace.Columns, to) {
			return nil, usagef("keyspace %s has no column %q (it has %s)", keyspace.Name, to, strings.Join(keyspace.Columns, ", "))
		}
		if slices.ContainsFunc(columns, func(c csvimport.Column) bool { return c.Counter == to }) {
			return nil, usagef("--map names column %q twice", to)
		}
		columns = append(columns, csvimport.Column{File: from, Counter: to})
	}
	if len(f.mapping) > 0 {
		return columns, nil
	}
	for _, name := range in.Header() {
		if name != f.idColumn && slices.Contains(keyspace.Columns, name) {
			columns = append(columns, csvimport.Column{File: name, Counter: name})
		}
	}
	if len(columns) == 0 {
		return nil, usagef("no column of %s (%s) has the name of one of keyspace %s (%s); give --map",
			in.Name(), strings.Join(in.Header(), ", "), keyspace.Name, strings.Join(keyspace.Columns, ", "))
	}
	return columns, nil
}

// findKeyspace returns a keyspace by name.
func findKeyspace(ctx context.Context, server *client.Client, name string) (client.Keyspace, error) {
	list, err := server.Keyspaces(ctx)
	if err != nil {
		return client.Keyspace{}, fmt.Errorf("cannot read the keyspaces: %w", err)
	}
	var names []string
	for _, k := range list {
		if k.Name == name {
			return k, nil
		}
		names = append(names, k.Name)
	}
	return client.Keyspace{}, fmt.Errorf("no keyspace %q (there are %s); countctl keyspace create makes one", name, strings.Join(names, ", "))
}

// findPlace returns where the import begins: behind what an earlier run of the
// same import did, or at the start. To begin again is always right, as values
// are absolute, so a progress file of another import is only reported.
func (c *cli) findPlace(ctx context.Context, server *client.Client, path string, f importFlags, columns []csvimport.Column) (csvimport.State, error) {
	if f.state == "" {
		return csvimport.State{}, nil
	}
	about, err := describe(ctx, server, path, f, columns)
	if err != nil || f.restart {
		return about.Begin(), err
	}
	before, found, err := readState(f.state)
	if err != nil || !found {
		return about.Begin(), err
	}
	if !before.SameImport(about) {
		fmt.Fprintf(c.err, "%s is of another import (the file, the server, the keyspace or the columns differ): beginning at the first row\n", f.state)
		return about.Begin(), nil
	}
	fmt.Fprintf(c.err, "going on after line %s of %s\n", grouped(before.Position.Line), path)
	return before, nil
}

// describe says what is imported where, by which a run knows the progress file
// of an earlier one.
func describe(ctx context.Context, server *client.Client, path string, f importFlags, columns []csvimport.Column) (csvimport.State, error) {
	about := csvimport.State{
		Kind: f.kind, Addr: server.Addr(), Keyspace: f.keyspace,
		IDColumn: f.idColumn, Events: f.events, Columns: columns,
	}
	if path == streamName {
		return about, nil
	}
	var err error
	if about.Input, err = csvfile.Identify(path); err != nil {
		return about, fmt.Errorf("cannot tell %s from other files: %w", path, err)
	}
	cluster, err := server.Cluster(ctx)
	if err != nil {
		return about, fmt.Errorf("cannot read the cluster's state: %w", err)
	}
	about.Cluster = cluster.ClusterID
	return about, nil
}

func readState(path string) (csvimport.State, bool, error) {
	state, found, err := csvimport.ReadState(path)
	if errors.Is(err, csvimport.ErrBadState) {
		err = fmt.Errorf("%w; remove it or name another --state", err)
	}
	return state, found, err
}

// explainImport says how to go on after an import that stopped.
func explainImport(err error, path string, f importFlags, s csvimport.Summary) error {
	next := "run it again to begin anew"
	if f.state != "" {
		next = fmt.Sprintf("run it again to go on after line %s", grouped(max(s.Position.Line, 1)))
	}
	var row *csvimport.RowError
	switch {
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("the import of %s was interrupted; %s", path, next)
	case errors.As(err, &row):
		return fmt.Errorf("%w; mend it, or skip bad rows with --on-error skip", err)
	}
	return fmt.Errorf("%w; %s", err, next)
}
