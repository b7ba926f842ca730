package bulk

import (
	"cmp"
	"context"
	"errors"
	"io"
	"sync"
	"time"
)

// rowReader reads the records of a file that no earlier run has handled. It writes bad records to
// the rejects. Its methods must not be called concurrently.
type rowReader struct {
	in      *CSVReader
	from    Position         // position of the earlier runs: records up to its line are skipped
	rejects *rejects         // nil if a bad row stops the run
	passed  func(line int64) // called for each rejected row
}

// openRejects creates the file of bad rows, or continues the file of an earlier run. If path is "",
// it does nothing.
func (r *rowReader) openRejects(path string) (err error) {
	if path == "" {
		return nil
	}
	lastLine := r.from.Line
	if r.from.Rejected == 0 {
		lastLine = 0 // no row before r.from was rejected, so all rows in an existing file are dropped
	}
	r.rejects, err = openRejects(path, r.in, lastLine)
	return err
}

// each calls use for each valid CSV record, until the file or ctx ends. use must not keep the
// record. If the record is bad or use returns a *RowError, each writes the record to the rejects.
// Without rejects, each returns that error.
func (r *rowReader) each(ctx context.Context, use func(record []string, line int64) error) error {
	for ctx.Err() == nil {
		record, err := r.in.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err == nil && r.in.Line() <= r.from.Line:
			continue
		case err == nil:
			err = use(record, r.in.Line())
		}
		if err != nil {
			err = r.reject(err)
		}
		if err != nil {
			return err
		}
	}
	return ctx.Err()
}

// reject writes the latest record to the rejects if err is a *RowError. If there are no rejects, or
// if err is another error, it returns err.
func (r *rowReader) reject(err error) error {
	var row *RowError
	switch {
	case !errors.As(err, &row):
		return err
	case row.Line <= r.from.Line:
		return nil // an earlier run rejected this record
	case r.rejects == nil:
		return row
	}
	if err := r.rejects.add(row, r.in.Raw()); err != nil {
		return err
	}
	r.passed(row.Line)
	return nil
}

// sender sends requests until its queue is closed. It calls fail with the error that stops the
// run.
type sender func(ctx context.Context, fail context.CancelCauseFunc)

// run runs the senders while read passes them the rows. It calls save every second, and whenever
// wake has a token. Once all rows are handled, it calls confirm, unless confirm is nil. It returns
// the first error.
//
// Goroutines: run starts one goroutine for each sender and one that saves, and waits for all of
// them.
func (r *rowReader) run(ctx context.Context, senders []sender, read func(context.Context) error, save func() error, wake <-chan struct{}, confirm func(context.Context) error) error {
	running, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var sending, saver sync.WaitGroup
	for _, send := range senders {
		sending.Go(func() { send(running, stop) })
	}
	ended := make(chan struct{})
	saver.Go(func() {
		tick := time.NewTicker(saveEvery)
		defer tick.Stop()
		for {
			select {
			case <-ended:
				return
			case <-tick.C:
			case <-wake:
			}
			if err := save(); err != nil {
				stop(err)
				return
			}
		}
	})
	err := read(running)
	sending.Wait()
	close(ended)
	saver.Wait()
	err = errors.Join(cmp.Or(context.Cause(running), err), r.rejects.close())
	if err == nil && confirm != nil {
		err = confirm(ctx)
	}
	return err
}
