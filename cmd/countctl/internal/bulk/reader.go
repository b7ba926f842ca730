package bulk

import (
	"cmp"
	"context"
	"errors"
	"io"
	"sync"
	"time"
)

// rowReader reads the records of a file that no earlier run has handled, and writes bad ones
// to the rejects. Its methods must not be called concurrently.
type rowReader struct {
	in      *CSVReader
	from    Position         // records up to its line are handled
	rejects *rejects         // nil if a bad row stops the run
	passed  func(line int64) // called for each rejected row
}

// openRejects prepares the file of bad rows, new or to continue. If path is "", there is no
// such file.
func (r *rowReader) openRejects(path string) (err error) {
	if path == "" {
		return nil
	}
	lastLine := r.from.Line
	if r.from.Rejected == 0 {
		lastLine = 0 // no row before from was rejected, so the file begins anew
	}
	r.rejects, err = openRejects(path, r.in, lastLine)
	return err
}

// each calls use for each valid CSV record, until the end of the file or of ctx. The record is
// valid during the call. A bad record, or one for which use returns a *RowError, goes to
// the rejects; without rejects, that error ends the run.
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

// reject writes the latest record to the rejects if err is a *RowError. Without
// rejects, or for another error, it returns the error.
func (r *rowReader) reject(err error) error {
	var row *RowError
	switch {
	case !errors.As(err, &row):
		return err
	case row.Line <= r.from.Line:
		return nil // the previous run rejected it
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

// run runs the senders while read passes them the rows. It saves the progress every second,
// and whenever wake has a token. Once all rows are handled it calls confirm, unless that is
// nil. It returns the first error.
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
