package data

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/countd/countd/client"
	"github.com/countd/countd/cmd/countctl/internal/bulk"
	"github.com/countd/countd/cmd/countctl/internal/cli"
)

// importOutput is the JSON output of an import of a file.
type importOutput struct {
	File          string  `json:"file"`
	Keyspace      string  `json:"keyspace"`
	Rows          int64   `json:"rows"`                    // acknowledged rows of all runs
	Rejected      int64   `json:"rejected"`                // rejected rows of all runs, including those of Overflows
	DoneBefore    bool    `json:"done_before,omitempty"`   // an earlier run had added the whole file
	RejectsFile   string  `json:"rejects_file,omitempty"`  // file of the rejected rows
	ResumedAfter  int64   `json:"resumed_after,omitempty"` // line after which this run continued
	Seconds       float64 `json:"seconds"`                 // duration of this run
	RowsPerSecond float64 `json:"rows_per_second"`         // average rate of this run

	Overflows bulk.Overflows `json:"overflows,omitzero"` // rows of all runs whose sum did not fit
}

func importCommand(c *cli.CLI) *cobra.Command {
	var f importFlags
	var r redisFlags
	var add bool
	cmd := &cobra.Command{
		Use:   "import FILE.csv[.gz]|-|redis://HOST:PORT/DB",
		Short: "Set or add the rows of a CSV file, or copy counts from Redis",
		Long: `Set the rows of a CSV file with a header, plain or gzipped. It reads the file to its end
before it sends anything; give - for a pipe.

Values are absolute: running it again changes nothing, and of several rows with one id
the last one wins. A run that stopped for any reason continues where it stopped when you
run it again; FILE.progress has its position until it is done. Standard input cannot be
read again, so such a run cannot continue.

With --add values are increments, and each row counts once, however often the command
or the server is killed and the command is run again. FILE.add-progress has its position.
Do not delete that file: it keeps a finished FILE from being added twice. --restart adds
all rows again, and so does another --state. Rows whose sum does not fit a signed 64-bit
integer are not added; the progress file has their number and ids, and they are rejected
rows in this run and in later ones.

A bad row stops the import with its line, and so does a sum that does not fit. With
--on-error skip a bad row of x.csv or x.csv.gz goes to x.rejects.csv with line and reason.
If rows were rejected, the exit code is 1.

From redis:// it copies counts from the keys that each --pattern matches: strings, sets
and sorted sets by their number of members, or columns of hashes. --map NAME=COLUMN
renames a column; NAME= skips it. Fields that match no column are counted and named; if
a pattern or a name of --map matches no value, the exit code is 1. A key whose id is not a
number is a bad row. Keys with a time to live are copied and named. At the end it reads
all keys again and compares them. It continues where it stopped, by
redis-HOST-PORT-DB.progress, unless Redis was restarted since.`,
		Example: `  countctl import posts.csv.gz --map reposts=repost,comments=comment,likes=like
  countctl import yesterday.csv --add
  countctl import redis://127.0.0.1:6379/0 --pattern 'like:{id}=posts:like' --pattern 'post:{id}=posts' --map reposts=repost`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if fromRedis(args[0]) {
				if add {
					return cli.Usagef("--add is for files: Redis stores counts, not increments")
				}
				r.batchGiven = cmd.Flags().Changed("batch")
				return importRedis(cmd.Context(), c, args[0], f, r)
			}
			if len(r.patterns) > 0 || r.verifyOnly {
				return cli.Usagef("--pattern and --verify-only are for redis://")
			}
			if add {
				f.about.Kind = bulk.KindAdd
			}
			return importFile(cmd.Context(), c, args[0], f)
		},
	}
	f.register(c, cmd, "id")
	r.register(cmd)
	flags := cmd.Flags()
	flags.StringSliceVar(&f.about.Map, "map", nil, "columns of the file and of the keyspace, FILE=KEYSPACE,… (default: those of the same name)")
	flags.BoolVar(&f.about.Format.EmptyAsZero, "empty-as-zero", false, "read an empty count as 0, not as a bad row")
	flags.BoolVar(&add, "add", false, "add the values to the existing counts, each row once")
	return cmd
}

// importDone prints the result of a run. It returns an error if rows were rejected.
func importDone(c *cli.CLI, out importOutput, f importFlags) error {
	if err := c.Print(out, out.table); err != nil {
		return err
	}
	if out.Rejected == 0 {
		return nil
	}
	text := cli.WereCounted(out.Rejected, "row") + " rejected"
	if out.Rejected > out.Overflows.Rows() {
		text += fmt.Sprintf("; correct the rows in %s and %s", out.RejectsFile, f.again())
	}
	if out.Overflows.Rows() > 0 {
		text += "; " + out.Overflows.String()
	}
	return errors.New(text)
}

func (o importOutput) table(t *cli.Table) {
	t.Row("FILE", "KEYSPACE", "ROWS", "REJECTED", "SECONDS", "ROWS/S")
	t.Row(o.File, o.Keyspace, cli.Grouped(o.Rows), cli.Grouped(o.Rejected), fmt.Sprintf("%.1f", o.Seconds), cli.Grouped(int64(o.RowsPerSecond)))
}

// importSource is an open file, with a client and the keyspace for its rows.
type importSource struct {
	path     string
	in       *bulk.CSVReader
	input    bulk.Identity // zero for standard input
	server   *client.Client
	keyspace client.Keyspace
	ids      bulk.IDParsers
	unlock   func() // unlocks the progress file; nil if there is none
}

// openImport checks the flags, opens the file, connects to the server and locks the
// progress file.
func openImport(ctx context.Context, c *cli.CLI, path string, f *importFlags) (*importSource, error) {
	if err := f.check(path); err != nil {
		return nil, err
	}
	s := &importSource{path: path}
	var err error
	if s.server, err = c.ConnectWaiting(f.retryFor); err != nil {
		return nil, err
	}
	if path == cli.StreamName {
		s.in, err = bulk.NewCSVStream("standard input", bulk.Interruptible(ctx, c.In), f.comma)
	} else {
		s.in, s.input, err = bulk.OpenWholeCSV(ctx, path, f.comma)
	}
	if errors.Is(err, bulk.ErrNotRegular) {
		err = fmt.Errorf("%w, which cannot be read a second time; read it as standard input: - < %s", err, path)
	}
	if err == nil {
		err = f.checkFiles(c, path)
	}
	if err == nil {
		s.keyspace, err = cli.FindCounters(ctx, s.server, f.about.Keyspace)
		s.ids.Row = s.keyspace.ParseID
	}
	if err == nil && f.about.OfMembers() {
		var users client.Keyspace // members are users
		users, err = cli.FindKeyspace(ctx, s.server, "users")
		s.ids.Member = users.ParseID
	}
	if err == nil && f.state != "" {
		s.unlock, err = lockState(path, f.state)
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// lockState locks the progress file state. Without the lock, two concurrent runs would use the same
// numbers.
func lockState(source, state string) (unlock func(), err error) {
	unlock, err = bulk.LockProgress(state)
	if errors.Is(err, bulk.ErrLocked) {
		err = fmt.Errorf("%s is being imported by another run: %w; nothing was done now, run it again when the other run has ended", source, err)
	}
	return unlock, err
}

// Close unlocks the progress file, and closes the file and the client.
func (s *importSource) Close() {
	if s.unlock != nil {
		s.unlock()
	}
	if s.in != nil {
		s.in.Close()
	}
	s.server.Close()
}

// importRun is a bulk.FileImport or a bulk.Replay.
type importRun interface {
	Run(ctx context.Context) (bulk.Summary, error)
	RowsAcked() int64
}

// importFile runs the import of a file: it checks the flags, imports the rows and prints the
// result.
func importFile(ctx context.Context, c *cli.CLI, path string, f importFlags) error {
	s, err := openImport(ctx, c, path, &f)
	if err != nil {
		return err
	}
	defer s.Close()
	cfg := bulk.FileConfig{
		Client: s.server, Rows: f.batch, InFlight: f.inFlight, Retry: c.Retry(f.retryFor), Rejects: f.rejects, State: f.state,
		Speed: f.speed, Restart: f.restart, IDs: s.ids,
	}
	var run importRun
	if f.about.Adds() {
		if cfg.From, cfg.Gone, err = findSession(ctx, c, s, f); err != nil {
			return err
		}
		if cfg.From.Session.Done {
			fmt.Fprintf(c.Err, "%s was added before; --restart adds it once more\n", path)
			f.rejects = cfg.From.Rejects // this run has no rejects, so the output names those of the earlier run
			out := outputOf(path, cfg.From.Summary(), cfg.From, f)
			out.DoneBefore = true
			return importDone(c, out, f)
		}
		cfg.Confirm = s.confirm(cfg.From, f)
		run, err = bulk.NewReplay(cfg, s.in)
	} else {
		if cfg.From, err = findPlace(ctx, c, s, f); err != nil {
			return err
		}
		cfg.Confirm = s.confirm(cfg.From, f)
		run, err = bulk.NewFileImport(cfg, s.in)
	}
	if err != nil {
		return err
	}
	meter := c.StartMeter(func() cli.Sample {
		return cli.Sample{Rows: cfg.From.Position.Rows + run.RowsAcked(), Done: s.in.BytesRead(), Total: s.in.Size()}
	})
	summary, err := run.Run(ctx)
	took := meter.Stop()
	if err != nil {
		return explainImport(err, path, f, summary)
	}
	out := outputOf(path, summary, cfg.From, f)
	out.Seconds, out.RowsPerSecond = took.Seconds(), float64(cli.PerSecond(run.RowsAcked(), took))
	return importDone(c, out, f)
}

// outputOf returns the output of an import. origin is the state in which this run began.
func outputOf(path string, s bulk.Summary, origin bulk.FileState, f importFlags) importOutput {
	out := importOutput{
		File: path, Keyspace: origin.Keyspace, Rows: s.Rows, Rejected: s.Rejected, Overflows: s.Overflows,
		ResumedAfter: origin.Position.Line,
	}
	if s.Position.Rejected > 0 {
		out.RejectsFile = cmp.Or(f.rejects, origin.Rejects)
	}
	return out
}
