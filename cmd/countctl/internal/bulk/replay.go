package bulk

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/countd/countd/client"
)

// Replay is one run that adds the rows of a file. Over all runs of one session, each row is added
// exactly once. Every run divides the file into the same cuts. It sends each cut under the
// session's producer and the number of the cut.
//
// Goroutines: Run starts one goroutine for each request in flight and one that saves progress. It
// waits for all of them before it returns.
type Replay struct {
	cfg     FileConfig
	rows    rowReader
	parser  incrementParser
	cuts    *cuts
	filling *cut // owned by the reader
	bucket  float64
	pace    pace
	acked   atomic.Int64 // rows acknowledged in this run
	first   sync.Mutex   // held while the first cut of this run writes the progress file
	begun   atomic.Bool  // the progress file describes the session; until then it is left unchanged
}

// NewReplay returns a replay of a file. cfg.From must have a session, from BeginSession. NewReplay
// returns an error if the file's header does not fit the config.
func NewReplay(cfg FileConfig, in *CSVReader) (*Replay, error) {
	r := &Replay{cfg: cfg, rows: rowReader{in: in, from: cfg.From.Position}, pace: pace{speed: cfg.Speed}}
	var err error
	if cfg.From.Kind == KindEvents {
		r.parser, err = newEventParser(in, &cfg)
	} else {
		r.parser, err = newRowParser(in, &cfg)
	}
	if err != nil {
		return nil, err
	}
	r.cuts = newCuts(progress{cfg.From.Session.Seq, cfg.From.Position, cfg.From.Overflows}, cfg.State != "")
	r.filling = &cut{before: cfg.From.Position, after: cfg.From.Position}
	r.rows.passed = r.pass
	return r, nil
}

// RowsAcked returns the number of rows that were acknowledged in this run. It includes rows that an
// earlier run had added without receiving the answer. It is safe for concurrent use.
func (r *Replay) RowsAcked() int64 { return r.acked.Load() }

// Run adds the rows of the file from the configured position on. It returns when every row is added
// or rejected, or when an error stops it, like FileImport.Run. Afterwards, the progress file holds
// the position where the next run continues, or states that the import is complete. If Run fails
// before it sends anything, it leaves the progress file unchanged.
func (r *Replay) Run(ctx context.Context) (Summary, error) {
	if err := r.rows.openRejects(r.cfg.Rejects); err != nil {
		return Summary{}, err
	}
	queue := make(chan *cut)
	read := func(ctx context.Context) error {
		defer close(queue)
		return r.read(ctx, queue)
	}
	send := func(ctx context.Context, fail context.CancelCauseFunc) { r.send(ctx, queue, fail) }
	save := func() error {
		if !r.begun.Load() {
			return nil // no cut was sent yet; the method begin writes the file before the first cut
		}
		return r.save(false)
	}
	err := r.rows.run(ctx, slices.Repeat([]sender{send}, r.cfg.InFlight), read, save, r.cuts.behind, r.cfg.Confirm)
	if err == nil {
		r.cuts.finish(r.filling.after) // filling.after is also past the rejected rows that follow the last cut
	}
	if err == nil || r.begun.Load() {
		err = errors.Join(err, r.save(err == nil))
	}
	return r.cuts.progress().summary(), err
}

// read divides the file into cuts and queues them. It stops at the end of the file, at a bad row if
// there are no rejects, or when ctx ends.
func (r *Replay) read(ctx context.Context, queue chan<- *cut) error {
	err := r.rows.each(ctx, func(record []string, line int64) error {
		inc, err := r.parser.increment(record)
		if err == nil {
			err = r.take(ctx, queue, inc, line)
		}
		return err
	})
	if err != nil {
		return err
	}
	return r.hand(ctx, queue)
}

// take adds an increment to the current cut, and queues a complete cut. Only the file and the
// session determine where a cut ends.
func (r *Replay) take(ctx context.Context, queue chan<- *cut, inc increment, line int64) error {
	if tick := r.cfg.From.Session.TickSeconds; tick > 0 {
		bucket := math.Floor(inc.seconds / tick)
		if bucket != r.bucket {
			if err := r.hand(ctx, queue); err != nil {
				return err
			}
		}
		r.bucket = bucket
	}
	if err := r.pace.wait(ctx, inc.seconds); err != nil {
		return err
	}
	if len(inc.deltas) > 0 {
		r.filling.add(inc)
	}
	r.filling.after.Line = line
	r.filling.after.Rows++
	if r.filling.rows() < int64(r.cfg.From.Session.BatchRows) {
		return nil
	}
	return r.hand(ctx, queue)
}

func (r *Replay) pass(line int64) {
	r.filling.after.Line = line
	r.filling.after.Rejected++
}

// hand queues the current cut, unless it is empty, and begins the next one.
func (r *Replay) hand(ctx context.Context, queue chan<- *cut) error {
	full := r.filling
	if full.rows() == 0 {
		return nil
	}
	r.filling = &cut{before: full.after, after: full.after}
	if err := r.cuts.letThrough(ctx, full); err != nil {
		return err
	}
	select {
	case queue <- full:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// send sends cuts until the queue is closed. Once ctx is done, the reader queues no further cut. But
// send sends each queued cut and waits for its answer: if a cut with a higher number was sent and
// this one was not, the server may forget the producer and then refuse this cut for ever.
func (r *Replay) send(ctx context.Context, queue <-chan *cut, fail context.CancelCauseFunc) {
	for c := range queue {
		if err := r.add(ctx, c); err != nil {
			fail(err)
		}
	}
}

// add sends a cut and records its outcome. If the sum of an id does not fit an int64, the cut
// counts as acknowledged all the same. Such a sum stops the run only if there are no rejects, like
// a bad row.
func (r *Replay) add(ctx context.Context, c *cut) error {
	if err := r.begin(); err != nil {
		return err
	}
	var result client.WriteResult
	if c.sums.Len() > 0 {
		o := client.WriteOptions{Quiet: true, Producer: r.cfg.From.Session.Producer, Seq: c.seq, Once: true}
		err := r.cfg.Retry.Do(ctx, func() (err error) {
			result, err = r.cfg.Client.IncrMany(context.WithoutCancel(ctx), r.cfg.From.Keyspace, c.sums.Ops(), o)
			return err
		})
		if client.AllRefused(err) {
			result.Refused, err = c.refuseAll(), nil
		}
		if err != nil {
			return fmt.Errorf("cannot add the rows of %s: %w", r.place(c), err)
		}
	}
	c.overflow(result)
	r.cuts.ack(c)
	r.acked.Add(c.rows())
	if c.overflows.Rows() > 0 && r.cfg.Rejects == "" {
		return fmt.Errorf("%s: %v", r.place(c), c.overflows)
	}
	return nil
}

// begin writes the progress file before the first cut is sent. So the producer's name is durable
// before it is used.
func (r *Replay) begin() error {
	if r.begun.Load() {
		return nil
	}
	r.first.Lock()
	defer r.first.Unlock()
	if r.begun.Load() {
		return nil
	}
	if err := r.save(false); err != nil {
		return err
	}
	r.begun.Store(true)
	return nil
}

func (r *Replay) place(c *cut) string {
	return fmt.Sprintf("%s:%d–%d", r.rows.in.Name(), c.before.Line+1, c.after.Line)
}

func (r *Replay) save(done bool) error {
	if r.cfg.State == "" {
		return nil
	}
	state, session := r.cfg.From, *r.cfg.From.Session
	at := r.cuts.progress()
	if err := r.rows.rejects.sync(); err != nil { // sync the rejects before the saved position passes them
		return err
	}
	session.Seq, state.Position, state.Overflows = at.seq, at.position, at.overflows
	session.Done = done
	state.Session = &session
	state.Rejects = cmp.Or(r.cfg.Rejects, state.Rejects)
	write := state.writeOwn
	if r.cfg.Restart && !r.begun.Load() {
		write = state.write
	}
	if err := write(r.cfg.State); err != nil {
		return err
	}
	r.cuts.saved(session.Seq)
	return nil
}
