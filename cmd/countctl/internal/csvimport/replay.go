package csvimport

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/countd/countd/client"
	"github.com/countd/countd/cmd/countctl/internal/csvfile"
)

// ReplayConfig configures a Replay.
type ReplayConfig struct {
	Client   *client.Client
	Retry    client.Retry // of each request
	InFlight int          // requests at a time, 1 … LanesMax
	Speed    float64      // times real time, by the file's clock; 0 does not wait
	Rejects  string       // file for bad rows; "" stops at the first one, and at a sum that does not fit
	State    string       // progress file; "" keeps none
	From     State        // of KindAdd or KindEvents, begun by BeginSession
	Restart  bool         // the first write of the progress file replaces whatever is there
	// Gone are columns of From that the keyspace has no more. Their rows are cut as before,
	// and add nothing to them.
	Gone []string
	// Confirm, if not nil, is called when all rows are added. With its error the session is
	// not done.
	Confirm func(context.Context) error
}

// Replay is one run that adds the rows of a file, each exactly once over all runs of one
// session: every run cuts the file in the same way, and each cut is sent under its own
// number of the session's producer.
//
// Goroutines: Run starts one for each request in flight and one that saves progress, and
// waits for all of them before it returns.
type Replay struct {
	cfg     ReplayConfig
	rows    rowReader
	parser  incrementParser
	cuts    *cuts
	filling *cut // owned by the reader
	bucket  float64
	pace    pace
	acked   atomic.Int64 // rows acknowledged in this run
	first   sync.Mutex   // held while the first cut of this run waits for begun
	begun   atomic.Bool  // the progress file describes the session; until then it is left unchanged
}

// NewReplay checks the file's header against the config.
func NewReplay(cfg ReplayConfig, in *csvfile.Reader) (*Replay, error) {
	if cfg.InFlight < 1 || cfg.InFlight > LanesMax {
		return nil, fmt.Errorf("1 to %d requests may be in flight, not %d", LanesMax, cfg.InFlight)
	}
	if cfg.From.Session == nil {
		return nil, errors.New("a session is missing")
	}
	r := &Replay{cfg: cfg, rows: rowReader{in: in, from: cfg.From.Position}, pace: pace{speed: cfg.Speed}}
	var err error
	if cfg.From.Kind == KindEvents {
		r.parser, err = newEventParser(in, cfg.From, cfg.Gone, cfg.Speed)
	} else {
		var p rowParser
		p, err = newRowParser(in, cfg.From.IDColumn, cfg.From.Columns, cfg.From.Format)
		p.gone = cfg.Gone
		r.parser = &p
	}
	if err != nil {
		return nil, err
	}
	r.cuts = newCuts(progress{cfg.From.Session.Seq, cfg.From.Position, cfg.From.Overflows}, cfg.State != "")
	r.filling = &cut{before: cfg.From.Position, after: cfg.From.Position}
	r.rows.passed = r.pass
	return r, nil
}

// RowsAcked returns the rows added in this run, or found to have been added by the previous
// one. It is safe for concurrent use.
func (r *Replay) RowsAcked() int64 { return r.acked.Load() }

// Run adds the file from the configured position. It returns when every row is added or
// rejected, or with the error that stopped it, like Import.Run. Then the progress file holds
// where to continue, or that all is done. A run that sent nothing leaves no progress file.
func (r *Replay) Run(ctx context.Context) (Summary, error) {
	if err := r.rows.openRejects(r.cfg.Rejects); err != nil {
		return Summary{}, err
	}
	running, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var senders, saver sync.WaitGroup
	queue := make(chan *cut)
	for range r.cfg.InFlight {
		senders.Go(func() { r.send(running, queue, stop) })
	}
	saving, stopSaving := context.WithCancel(context.Background())
	saver.Go(func() { r.saveBehind(saving, stop) })

	err := r.read(running, queue)
	close(queue)
	senders.Wait()
	stopSaving()
	saver.Wait()
	if cause := context.Cause(running); cause != nil {
		err = cause // why reading stopped
	}
	err = errors.Join(err, r.rows.close())
	if err == nil && r.cfg.Confirm != nil {
		err = r.cfg.Confirm(ctx)
	}
	if err == nil {
		r.cuts.finish(r.filling.after) // including the rejected rows after the last cut
	}
	if err == nil || r.begun.Load() {
		err = errors.Join(err, r.save(err == nil))
	}
	return r.cuts.progress().summary(), err
}

// read cuts the file until its end, a bad row that may not be skipped, or the
// end of ctx.
func (r *Replay) read(ctx context.Context, queue chan<- *cut) error {
	for {
		record, line, err := r.rows.next(ctx)
		if errors.Is(err, io.EOF) {
			return r.hand(ctx, queue)
		}
		if err != nil {
			return err
		}
		inc, err := r.parser.increment(record, line)
		if err == nil {
			err = r.take(ctx, queue, inc, line)
		} else {
			err = r.rows.reject(err)
		}
		if err != nil {
			return err
		}
	}
}

// take adds an increment to its cut. The end of a cut depends on the file and the session
// only.
func (r *Replay) take(ctx context.Context, queue chan<- *cut, inc increment, line int64) error {
	if tick := r.cfg.From.Session.TickSeconds; tick > 0 {
		bucket := math.Floor(inc.at / tick)
		if bucket != r.bucket {
			if err := r.hand(ctx, queue); err != nil {
				return err
			}
		}
		r.bucket = bucket
	}
	if err := r.pace.wait(ctx, inc.at); err != nil {
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

// pass records a rejected row.
func (r *Replay) pass(line int64) {
	r.filling.after.Line = line
	r.filling.after.Rejected++
}

// hand lets the cut go that is being filled, unless it is empty, and begins the
// next one.
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

// send sends cuts until the queue is closed. Once ctx is done it sends nothing more, but it
// waits for the answer of a request in flight: an answer that is known now need not be asked
// for by the next run, which may come when the server has forgotten the session.
func (r *Replay) send(ctx context.Context, queue <-chan *cut, fail context.CancelCauseFunc) {
	for c := range queue {
		if ctx.Err() != nil {
			continue
		}
		if err := r.add(ctx, c); err != nil {
			fail(err)
		}
	}
}

// add sends a cut and records its outcome. Sums that do not fit are not a failure of the
// cut: they stop the run only if a bad row does too.
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
		if noneFits(err) {
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

// begin writes the progress file before the first cut is sent: the producer's name
// must outlive this process before it is used.
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

// saveBehind saves progress at intervals, and whenever the window waits for it, until ctx
// ends.
func (r *Replay) saveBehind(ctx context.Context, fail context.CancelCauseFunc) {
	tick := time.NewTicker(saveEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-r.cuts.behind:
		}
		if !r.begun.Load() {
			continue // the first cut to be sent saves
		}
		if err := r.save(false); err != nil {
			fail(err)
			return
		}
	}
}

func (r *Replay) save(done bool) error {
	if r.cfg.State == "" {
		return nil
	}
	state, session := r.cfg.From, *r.cfg.From.Session
	at := r.cuts.progress()
	if err := r.rows.sync(); err != nil { // before the progress passes them
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
