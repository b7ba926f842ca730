// Package csvimport streams the rows of a CSV file into a keyspace: as absolute values
// (Import), or as increments (Replay).
//
// It owns the order of rows, the batches in flight and the progress file. It never repeats a
// row in a way that changes the result. Invariant: the progress file names a line up to
// which every row was acknowledged or written to the rejects; the line never decreases.
//
// Absolute values may be repeated if the order of the rows of one id is kept. All rows of an
// id therefore use the same lane, and a lane has one request in flight, so that the last row
// wins even if requests are repeated. Package fence keeps the order of runs. Increments may be
// sent in any order that no floor can tell from that of the file, but each counts once: a
// batch is repeated unchanged, under its number. The argument is in transfer/DESIGN.md.
package csvimport

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/countd/countd/client"
	"github.com/countd/countd/cmd/countctl/internal/csvfile"
	"github.com/countd/countd/cmd/countctl/internal/fence"
)

const (
	// LanesMax bounds the requests in flight. A server's groups are busy with
	// a few already.
	LanesMax = 64
	// saveEvery bounds how much work a killed import repeats, apart from the requests in
	// flight.
	saveEvery = time.Second
)

// Column maps a column of the file to one of the keyspace.
type Column struct {
	File    string `json:"file"`
	Counter string `json:"counter"`
}

// Config configures an Import.
type Config struct {
	Client    *client.Client
	Keyspace  string
	IDColumn  string // of the file
	Columns   []Column
	BatchRows int          // rows of one request, 1 … client.WriteOpsMax
	Lanes     int          // requests in flight, 1 … LanesMax
	Retry     client.Retry // of each request
	Rejects   string       // file for bad rows; "" stops at the first one
	State     string       // progress file; "" keeps none
	From      State        // where to go on; Position is zero at the start of the file
	// Confirm, if not nil, is called when all rows are acknowledged. With its error the import
	// is not done.
	Confirm func(context.Context) error

	// Sets, if its Column is not "", are what the rows' members join, in place of setting
	// values; Columns has only the column of the file that holds the member.
	Sets Sets
}

// Sets are the sets of a column.
type Sets struct {
	Column    string
	Uncounted bool // the counts stay as they are
}

// Summary is the result of an import.
type Summary struct {
	Rows      int64 // acknowledged, including the previous run
	Rejected  int64 // likewise; the rows of Overflows are in no file
	Position  Position
	Overflows Overflows // of increments
}

// Import is one run over one file.
//
// Goroutines: Run starts one for each lane and one that saves progress, and waits for all of
// them before it returns.
type Import struct {
	cfg    Config
	rows   rowReader
	parser rowParser
	writer *fence.Writer
	lanes  []*lane
	mark   *watermark
	acked  atomic.Int64 // rows acknowledged in this run
}

// New checks the file's header against the config.
func New(cfg Config, in *csvfile.Reader) (*Import, error) {
	if cfg.BatchRows < 1 || cfg.BatchRows > client.WriteOpsMax {
		return nil, fmt.Errorf("a batch has 1 to %d rows, not %d", client.WriteOpsMax, cfg.BatchRows)
	}
	if cfg.Lanes < 1 || cfg.Lanes > LanesMax {
		return nil, fmt.Errorf("1 to %d requests may be in flight, not %d", LanesMax, cfg.Lanes)
	}
	parser, err := newRowParser(in, cfg.IDColumn, cfg.Columns, cfg.From.Format)
	if err != nil {
		return nil, err
	}
	cfg.From.Fence = cfg.From.Fence.Next()
	im := &Import{cfg: cfg, parser: parser, mark: newWatermark(cfg.Lanes, cfg.From.Position)}
	im.writer = fence.NewWriter(cfg.From.Fence, cfg.Retry)
	im.rows = rowReader{in: in, from: cfg.From.Position, passed: im.mark.passed}
	for i := range cfg.Lanes {
		im.lanes = append(im.lanes, &lane{im: im, number: i, filling: im.newBatch(), queue: make(chan *batch, laneQueueMax)})
	}
	return im, nil
}

// RowsAcked returns the rows acknowledged in this run. It is safe for concurrent use.
func (im *Import) RowsAcked() int64 { return im.acked.Load() }

// Run imports the file from the configured position. It writes the progress file first: the
// next run must know the fence of this one. It returns when every row is acknowledged or
// rejected, or with the error that stopped it: a *RowError for a bad row, or
// ctx's error. After a failure the progress file holds where to continue; after success the
// file is removed.
func (im *Import) Run(ctx context.Context) (Summary, error) {
	if err := im.rows.openRejects(im.cfg.Rejects); err != nil {
		return Summary{}, err
	}
	if err := im.save(); err != nil {
		return Summary{}, errors.Join(err, im.rows.close())
	}
	running, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var lanes, saver sync.WaitGroup
	for _, l := range im.lanes {
		lanes.Go(func() { l.run(running, stop) })
	}
	saving, stopSaving := context.WithCancel(context.Background())
	saver.Go(func() { im.saveEvery(saving, stop) })

	err := im.read(running)
	for _, l := range im.lanes {
		l.finish(running)
	}
	lanes.Wait()
	stopSaving()
	saver.Wait()
	if cause := context.Cause(running); cause != nil {
		err = cause // why reading stopped
	}
	if err == nil && im.cfg.Confirm != nil {
		err = im.cfg.Confirm(ctx)
	}
	return im.end(err)
}

// end closes the rejects and leaves or removes the progress file.
func (im *Import) end(err error) (Summary, error) {
	err = errors.Join(err, im.rows.close())
	position := im.mark.position()
	summary := Summary{Rows: position.Rows, Rejected: position.Rejected, Position: position}
	switch {
	case im.cfg.State == "":
	case err != nil:
		err = errors.Join(err, im.save())
	default:
		if removeErr := os.Remove(im.cfg.State); removeErr != nil && !errors.Is(removeErr, os.ErrNotExist) {
			err = fmt.Errorf("cannot remove the progress file: %w", removeErr)
		}
	}
	return summary, err
}

// read passes the file's rows to the lanes until the end of the file, a bad row that may not
// be skipped, or the end of ctx.
func (im *Import) read(ctx context.Context) error {
	for {
		record, line, err := im.rows.next(ctx)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		op, err := im.parse(record, line)
		if err == nil {
			im.lanes[laneOf(op.ID, len(im.lanes))].add(ctx, op, line)
			continue
		}
		if err := im.rows.reject(err); err != nil {
			return err
		}
	}
}

// parse parses a row. A member has no cells.
func (im *Import) parse(record []string, line int64) (row, error) {
	if im.cfg.Sets.Column != "" {
		id, member, err := im.parser.parseMember(record, line)
		return row{Op: client.Op{ID: id}, member: member}, err
	}
	id, cells, err := im.parser.parse(record, line)
	return row{Op: client.Op{ID: id, Cells: cells}}, err
}

// saveEvery saves progress until ctx ends.
func (im *Import) saveEvery(ctx context.Context, fail context.CancelCauseFunc) {
	if im.cfg.State == "" {
		return
	}
	tick := time.NewTicker(saveEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := im.save(); err != nil {
			fail(err)
			return
		}
	}
}

func (im *Import) save() error {
	if im.cfg.State == "" {
		return nil
	}
	state := im.cfg.From
	state.Position = im.mark.position()
	if err := im.rows.sync(); err != nil { // before the progress passes them
		return err
	}
	state.Rejects = cmp.Or(im.cfg.Rejects, state.Rejects)
	return state.write(im.cfg.State)
}
