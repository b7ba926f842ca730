package data

import (
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/countd/countd/client"
	"github.com/countd/countd/cmd/countctl/internal/bulk"
	"github.com/countd/countd/cmd/countctl/internal/cli"
)

// Defaults of an import, from measurements on 2 busy cores shared with a one-node server. With
// batches of 1,000 rows and 4 requests in flight, it imported 250,000 to 310,000 rows/s. With 2,000
// rows and 8 requests, it imported 480,000 to 530,000 rows/s. With 5,000 rows and 8 requests, it
// was about 15 % faster, but request bodies and pauses were more than twice as large.
const (
	importBatchDefault = 2000
	importLanesDefault = 8
)

// The values of --on-error.
const (
	onErrorStop = "stop"
	onErrorSkip = "skip"
)

type importFlags struct {
	about     bulk.FileState // has only the kind of the import, and the flags about the file and the keyspace
	column    string         // column whose sets "members import" changes; "" for other imports
	member    string         // column of the file with the members; "" for other imports
	onError   string
	rejects   string
	state     string
	restart   bool
	batch     int
	inFlight  int
	retryFor  time.Duration
	delimiter string
	comma     rune    // delimiter as a character, set by check
	speed     float64 // speed of a replay, as a multiple of real time; 0 to not wait
}

// register adds the flags that import and replay share.
func (f *importFlags) register(c *cli.CLI, cmd *cobra.Command, idColumn string) {
	c.KeyspaceFlag(cmd, &f.about.Keyspace)
	flags := cmd.Flags()
	flags.StringVar(&f.about.IDColumn, "id-column", idColumn, "column of the file that holds the id")
	flags.StringVar(&f.onError, "on-error", onErrorStop, "what to do at a bad row: stop or skip")
	flags.StringVar(&f.rejects, "rejects", "", "file for skipped rows (default x.rejects.csv of x.csv)")
	flags.StringVar(&f.state, "state", "", "file that records the progress (default: next to FILE)")
	flags.StringVar(&f.delimiter, "delimiter", ",", "character between the fields of the file, or tab")
	flags.BoolVar(&f.restart, "restart", false, "ignore earlier progress and begin at the first row")
	flags.IntVar(&f.batch, "batch", importBatchDefault, "rows of one request, at most 10,000")
	flags.IntVar(&f.inFlight, "in-flight", importLanesDefault, "requests in flight, at most 64")
	cli.RetryFlag(flags, &f.retryFor)
}

// stateSuffix returns the suffix of the default progress file. Each kind has its own suffix, so
// that an import of values does not overwrite the progress of an import of increments.
func (f *importFlags) stateSuffix() string {
	switch f.about.Kind {
	case bulk.KindAdd:
		return ".add-progress"
	case bulk.KindEvents:
		return ".replay-progress"
	case bulk.KindMembers, bulk.KindCopied:
		return ".members-progress"
	}
	return ".progress"
}

// again explains how to import the rejected rows.
func (f *importFlags) again() string {
	switch f.about.Kind {
	case bulk.KindAdd:
		return "import that with --add"
	case bulk.KindEvents:
		return "replay that"
	}
	return "import that"
}

// checkValues checks the values of the flags that every import has.
func (f *importFlags) checkValues() error {
	if f.onError != onErrorStop && f.onError != onErrorSkip {
		return cli.Usagef("--on-error is stop or skip, not %q", f.onError)
	}
	if f.batch < 1 || f.batch > client.WriteOpsMax {
		return cli.Usagef("--batch is 1 to %d, not %d", client.WriteOpsMax, f.batch)
	}
	if f.inFlight < 1 || f.inFlight > bulk.LanesMax {
		return cli.Usagef("--in-flight is 1 to %d, not %d", bulk.LanesMax, f.inFlight)
	}
	return nil
}

// check checks the flags of an import of a file, and sets the default names of the progress file
// and the rejects.
func (f *importFlags) check(path string) error {
	if err := f.checkValues(); err != nil {
		return err
	}
	var err error
	if f.comma, err = bulk.ParseDelimiter(f.delimiter); err != nil {
		return cli.Usagef("--delimiter %v", err)
	}
	if f.comma != ',' {
		f.about.Format.Delimiter = string(f.comma)
	}
	skip := f.onError == onErrorSkip
	if !skip && f.rejects != "" {
		return cli.Usagef("--rejects needs --on-error skip")
	}
	if path == cli.StreamName {
		if f.state != "" || skip && f.rejects == "" {
			return cli.Usagef("with standard input, --on-error skip needs --rejects, and --state cannot be kept")
		}
		return nil
	}
	if f.state == "" {
		f.state = resolved(path) + f.stateSuffix() // for a link, use the progress file of its target
	}
	f.state = resolved(f.state)
	if skip && f.rejects == "" {
		f.rejects = strings.TrimSuffix(strings.TrimSuffix(path, ".gz"), ".csv") + ".rejects.csv"
	}
	return nil
}

// checkFiles returns an error if the command would overwrite the file that it reads, or use the
// same file as progress file and rejects.
func (f *importFlags) checkFiles(c *cli.CLI, path string) error {
	input, err := os.Stat(path)
	if in, ok := c.In.(*os.File); ok && path == cli.StreamName {
		input, err = in.Stat()
	}
	for _, written := range []struct{ flag, path string }{{"--rejects", f.rejects}, {"--state", f.state}, {"the lock of --state", f.state + ".lock"}} {
		if is, statErr := os.Stat(written.path); err == nil && statErr == nil && os.SameFile(input, is) {
			return cli.Usagef("%s must not be the file that is read, which %s is", written.flag, written.path)
		}
	}
	return f.checkDistinct()
}

// checkDistinct returns an error if the progress file and the rejects are the same file.
func (f *importFlags) checkDistinct() error {
	if f.state != "" && f.rejects != "" && cli.SameFile(f.state, f.rejects) {
		return cli.Usagef("--rejects and --state must not be one file")
	}
	return nil
}

// resolved resolves the symbolic links in a path. If the file does not exist yet, it returns the
// path itself.
func resolved(path string) string {
	if target, err := filepath.EvalSymlinks(path); err == nil {
		return target
	}
	return path
}
