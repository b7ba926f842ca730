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
	"os"
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

// Config configures a run of either kind.
type Config struct {
	Client   *client.Client
	Rows     int          // of one request of an Import, 1 … client.WriteOpsMax; a session has its own
	InFlight int          // requests at a time, 1 … LanesMax
	Retry    client.Retry // of each request
	Rejects  string       // file for bad rows; "" stops at the first one, and at a sum that does not fit
	State    string       // progress file; "" keeps none
	From     State        // where to continue; Position is zero at the start of the file
	// Confirm, if not nil, is called when all rows are handled. With its error the run is not
	// done.
	Confirm func(context.Context) error

	// The other fields are of a Replay.
	Speed   float64 // times real time, by the file's clock; 0 does not wait
	Restart bool    // the first write of the progress file replaces any other file
	// Gone are columns of From that the keyspace no longer has. Their rows are cut as before,
	// and add nothing to them.
	Gone []string
}

// Summary is the result of an import.
type Summary struct {
	Rows      int64 // acknowledged, including the previous run
	Rejected  int64 // likewise; the rows of Overflows are in no file
	Position  Position
	Overflows Overflows // of increments
}

// Import is one run that sets the rows of a file, or adds its members.
type Import struct {
	cfg    Config
	rows   rowReader
	parser *rowParser
	writer *fence.Writer
	lanes  []*lane
	mark   *watermark
	acked  atomic.Int64 // rows acknowledged in this run
}

// New checks the file's header against the config.
func New(cfg Config, in *csvfile.Reader) (*Import, error) {
	parser, err := newRowParser(in, cfg.From, nil)
	if err != nil {
		return nil, err
	}
	cfg.From.Fence = cfg.From.Fence.Next()
	im := &Import{cfg: cfg, parser: parser, mark: newWatermark(cfg.InFlight, cfg.From.Position)}
	im.writer = fence.NewWriter(cfg.From.Fence, cfg.Retry)
	im.rows = rowReader{in: in, from: cfg.From.Position, passed: im.mark.passed}
	for i := range cfg.InFlight {
		im.lanes = append(im.lanes, &lane{im: im, number: i, filling: im.newBatch(), queue: make(chan *batch, laneQueueMax)})
	}
	return im, nil
}

// RowsAcked returns the rows acknowledged in this run. It is safe for concurrent use.
func (im *Import) RowsAcked() int64 { return im.acked.Load() }

// Run imports the file from the configured position. It writes the progress file first: the
// next run must know the fence of this one. It returns when every row is acknowledged or
// rejected, or with the error that stopped it: a *csvfile.RowError for a bad row, or ctx's
// error. After a failure the progress file holds where to continue; after success the file is
// removed.
func (im *Import) Run(ctx context.Context) (Summary, error) {
	if err := im.rows.openRejects(im.cfg.Rejects); err != nil {
		return Summary{}, err
	}
	if err := im.save(); err != nil {
		return Summary{}, errors.Join(err, im.rows.rejects.close())
	}
	var senders []sender
	for _, l := range im.lanes {
		senders = append(senders, l.run)
	}
	err := im.rows.run(ctx, senders, im.read, im.save, nil, im.cfg.Confirm)
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

// read passes the rows to the lanes, and then finishes the lanes.
func (im *Import) read(ctx context.Context) error {
	err := im.rows.each(ctx, func(record []string, line int64) error {
		op, err := im.parse(record)
		if err == nil {
			im.lanes[laneOf(op.ID, len(im.lanes))].add(ctx, op, line)
		}
		return err
	})
	for _, l := range im.lanes {
		l.finish(ctx)
	}
	return err
}

// parse parses a row. A member has no cells.
func (im *Import) parse(record []string) (row, error) {
	if im.cfg.From.ofMembers() {
		id, member, err := im.parser.parseMember(record)
		return row{Op: client.Op{ID: id}, member: member}, err
	}
	id, cells, err := im.parser.parse(record)
	return row{Op: client.Op{ID: id, Cells: cells}}, err
}

func (im *Import) save() error {
	if im.cfg.State == "" {
		return nil
	}
	state := im.cfg.From
	state.Position = im.mark.position()
	if err := im.rows.rejects.sync(); err != nil { // before the progress passes them
		return err
	}
	state.Rejects = cmp.Or(im.cfg.Rejects, state.Rejects)
	return state.write(im.cfg.State)
}
