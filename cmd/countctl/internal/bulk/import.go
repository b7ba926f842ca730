// Package bulk does the work of commands that read, write or compare many rows: it imports values
// and increments from CSV files, copies counts from Redis, and finds drifts of rows.
//
// It owns the order of rows, the batches in flight, and the progress file that lets a run continue
// after an interruption. If a run writes a row again that an earlier run has written, the result is
// the same. The package never writes to Redis.
//
// Invariant: every row or key up to the position in the progress file was acknowledged or rejected.
// That position never decreases. DESIGN.md explains why this is enough.
//
// An import of absolute values may send a row more than once if it keeps the order of the rows of
// each id. So all rows of an id use one lane, and a lane has one request in flight. Then the last
// row of an id wins even if requests are repeated. A Fence keeps the order of runs. Redis may
// return a key twice, but that does not change the result.
//
// Each increment must count once, so a batch is repeated unchanged, under the same number.
// Increments are sent in another order than that of the file only if no floor can make the order
// matter.
package bulk

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/countd/countd/client"
)

const (
	// LanesMax bounds the requests in flight. More would not make an import faster: a few requests
	// already keep all Raft groups of a server busy.
	LanesMax = 64
	// saveEvery is the interval at which the progress file is written. After a kill, the next run
	// repeats the work since that write.
	saveEvery = time.Second
)

// Column maps a column of the file to a column of the keyspace.
type Column struct {
	File    string `json:"file"`
	Counter string `json:"counter"`
}

// FileConfig configures a FileImport or a Replay.
type FileConfig struct {
	Client   *client.Client
	Rows     int          // rows in one request of a FileImport, 1 … client.WriteOpsMax; a Replay uses BatchRows of its session
	InFlight int          // maximum number of requests in flight, 1 … LanesMax
	Retry    client.Retry // how each request is repeated
	Rejects  string       // file for bad rows; if it is "", the run stops at the first bad row, or at a sum that does not fit an int64
	State    string       // path of the progress file; "" for none
	From     FileState    // state from which to continue; its Position is zero for the start of the file
	IDs      IDParsers
	// Confirm is called when all rows are handled, unless it is nil. If it returns an error, the
	// run fails.
	Confirm func(context.Context) error

	// Only a Replay uses the fields below.
	Speed   float64 // multiple of real time at which to replay the times of the file; 0 to not wait
	Restart bool    // the run may replace the progress file of another session
	// Gone lists columns of From that the keyspace no longer has. The run leaves out their
	// increments, but cuts the file into batches as if they existed.
	Gone []string
}

// Summary is the result of an import.
type Summary struct {
	Rows      int64 // rows acknowledged by all runs of the import, without the rows in Overflows
	Rejected  int64 // rows rejected by all runs, plus the rows in Overflows, which are not in the file of rejects
	Position  Position
	Overflows Overflows // set by a Replay
}

// FileImport is one run that sets the counts of a file's rows, or adds the file's members to sets.
type FileImport struct {
	cfg    FileConfig
	rows   rowReader
	parser *rowParser
	writer *fencedWriter
	lanes  []*lane
	mark   *watermark
	acked  atomic.Int64 // rows acknowledged in this run
}

// NewFileImport returns an import of a file, or an error if the file's header does not fit the
// config.
func NewFileImport(cfg FileConfig, in *CSVReader) (*FileImport, error) {
	parser, err := newRowParser(in, &cfg)
	if err != nil {
		return nil, err
	}
	cfg.From.Fence = cfg.From.Fence.Next()
	im := &FileImport{cfg: cfg, parser: parser, mark: newWatermark(cfg.InFlight, cfg.From.Position)}
	im.writer = newFencedWriter(cfg.From.Fence, cfg.Retry)
	im.rows = rowReader{in: in, from: cfg.From.Position, passed: im.mark.passed}
	for i := range cfg.InFlight {
		im.lanes = append(im.lanes, &lane{im: im, number: i, filling: im.newBatch(), queue: make(chan *batch, laneQueueMax)})
	}
	return im, nil
}

// RowsAcked returns the rows acknowledged in this run. It is safe for concurrent use.
func (im *FileImport) RowsAcked() int64 { return im.acked.Load() }

// Run imports the file from the configured position. It writes the progress file first, so that the
// next run knows the fence of this one. It returns when every row is acknowledged or rejected, or
// when an error stops it: a *RowError for a bad row, ctx's error, or another error. After a
// failure, the progress file holds the position where the next run continues. After success, Run
// removes that file.
func (im *FileImport) Run(ctx context.Context) (Summary, error) {
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

// read passes the rows to the lanes, and then calls finish for each lane.
func (im *FileImport) read(ctx context.Context) error {
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

// parse parses a row of counts, or a row with a member and no cells.
func (im *FileImport) parse(record []string) (row, error) {
	if im.cfg.From.OfMembers() {
		id, member, err := im.parser.parseMember(record)
		return row{Op: client.Op{ID: id}, member: member}, err
	}
	id, cells, err := im.parser.parse(record)
	return row{Op: client.Op{ID: id, Cells: cells}}, err
}

func (im *FileImport) save() error {
	if im.cfg.State == "" {
		return nil
	}
	state := im.cfg.From
	state.Position = im.mark.position()
	if err := im.rows.rejects.sync(); err != nil { // sync the rejects before the saved position passes them
		return err
	}
	state.Rejects = cmp.Or(im.cfg.Rejects, state.Rejects)
	return state.write(im.cfg.State)
}
