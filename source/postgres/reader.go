package postgres

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/countd/countd/source"
)

const (
	// waitMax bounds the wait of Next for a message.
	waitMax = time.Second
	// pendingMax bounds the messages that wait in memory.
	pendingMax = 2_000
	// slotFreeEvery is the interval at which Again checks whether the server has released the
	// slot.
	slotFreeEvery = 10 * time.Millisecond
	// askEvery is the interval at which Again requests the server's position in the log. Each
	// answer counts as progress. At the same interval, Again uses the connection for queries, so
	// that no timeout of the server closes it: Read refuses to begin if that connection was
	// replaced.
	askEvery = 100 * time.Millisecond
)

// item is what the receiving goroutine passes to Next: a message with the position after it, or
// only a new position.
type item struct {
	message source.Message
	has     bool
	next    source.Position
}

// reader streams the log. Read starts a goroutine that receives and decodes the stream. Next
// receives items from the goroutine's channel. Close ends the goroutine and waits for it.
type reader struct {
	conn   *pgconn.PgConn
	dec    decoder
	items  chan item
	holds  *source.Buffered // bounds the items
	ended  chan struct{}
	err    error // error of the goroutine; set before items is closed
	cancel context.CancelFunc
	b      *Broker
	from   source.Position
	next   source.Position // position that Next returns
	heard  func()          // called for each message of the server
	asked  atomic.Bool     // Next has requested an answer, and the server has sent nothing since

	mu struct {
		sync.Mutex
		confirmed uint64 // position last confirmed to the server; mu also guards writes to conn
	}
}

// Read returns a reader. It returns a *source.StalledError if position from is below the slot's
// confirmed position.
func (b *Broker) Read(ctx context.Context, _ uint32, from source.Position, found source.Mark) (source.Reader, error) {
	r, err := b.read(ctx, from, found, false, func() {})
	if err != nil {
		return nil, err
	}
	return r, nil
}

func (b *Broker) read(ctx context.Context, from source.Position, found source.Mark, compares bool, heard func()) (*reader, error) {
	conn, err := pgconn.ConnectConfig(ctx, b.conn)
	if err != nil {
		return nil, err
	}
	system, err := identify(ctx, conn)
	if err == nil {
		err = startReplication(ctx, conn, b.cfg, from)
	}
	var confirmed source.Position
	if err == nil { // this reader has the slot now, so no other reader can move the slot's position
		confirmed, err = b.confirmed(ctx)
	}
	if err == nil && from.Hi < confirmed.Hi {
		err = source.Lost(confirmed, "slot %s was moved to %s, past position %s: messages between were not read", b.cfg.Slot, confirmed, from)
	}
	if err == nil && found.Exists() {
		err = b.stillCompared()
	}
	if err != nil {
		_ = conn.Close(ctx) // err already says why
		return nil, err
	}
	b.setRead(system)
	life, cancel := context.WithCancel(context.Background())
	r := &reader{
		conn:   conn,
		dec:    decoder{prefix: b.cfg.Prefix, relations: map[uint32]relation{}, compares: compares},
		items:  make(chan item, pendingMax),
		holds:  source.NewBuffered(),
		ended:  make(chan struct{}),
		cancel: cancel,
		b:      b,
		from:   from,
		next:   from,
		heard:  heard,
	}
	r.mu.confirmed = confirmed.Hi
	go r.receive(life)
	return r, nil
}

// Again returns the first two messages from one position up to another. It omits messages below the
// slot's confirmed position. It returns only after the server has released the slot.
func (b *Broker) Again(ctx context.Context, _ uint32, from, to source.Position, progress func()) (source.Again, error) {
	confirmed, err := b.confirmed(ctx)
	b.setCompared()
	again := source.Again{Whole: confirmed.Hi <= from.Hi}
	if err != nil || !confirmed.Less(to) {
		return again, err
	}
	if !again.Whole {
		from = confirmed
	}
	r, err := b.read(ctx, from, source.Mark{}, true, progress)
	if err != nil {
		return again, err
	}
	var asked time.Time
	for at := from; at.Less(to) && len(again.Messages) < 2; {
		if time.Since(asked) > askEvery {
			if _, err = b.confirmed(ctx); err == nil {
				err = r.Commit(ctx, source.Position{}) // requests the server's position in the log
			}
			asked = time.Now()
		}
		var got source.Fetched
		if err == nil {
			got, err = r.Next(ctx, 2)
		}
		if err != nil {
			break
		}
		for _, m := range got.Messages {
			if m.Position.Less(to) {
				again.Messages = append(again.Messages, m)
			}
		}
		at = got.Next
	}
	_ = r.Close() // ignore the error, because the messages are valid anyway
	for err == nil {
		active, failed := b.row(ctx, 1, "SELECT active FROM pg_replication_slots WHERE slot_name = '"+b.cfg.Slot+"'")
		if failed != nil || active == nil || string(active[0]) == "f" {
			return again, failed
		}
		select {
		case <-ctx.Done():
			err = ctx.Err()
		case <-time.After(slotFreeEvery):
		}
	}
	return again, err
}

func startReplication(ctx context.Context, conn *pgconn.PgConn, cfg *source.Config, from source.Position) error {
	sql := fmt.Sprintf("START_REPLICATION SLOT %s LOGICAL %X/%X (proto_version '1', publication_names '\"%s\"', messages 'true')",
		cfg.Slot, from.Hi>>32, uint32(from.Hi), cfg.Publication)
	conn.Frontend().Send(&pgproto3.Query{String: sql})
	if err := conn.Frontend().Flush(); err != nil {
		return err
	}
	for {
		m, err := conn.ReceiveMessage(ctx)
		if err != nil {
			return err
		}
		switch m := m.(type) {
		case *pgproto3.CopyBothResponse:
			return nil
		case *pgproto3.ErrorResponse:
			return pgconn.ErrorResponseToPgError(m)
		case *pgproto3.NoticeResponse, *pgproto3.ParameterStatus:
		default:
			return fmt.Errorf("unexpected %T", m)
		}
	}
}

// receive decodes messages of the server and passes them to Next, until life ends or an error
// occurs.
func (r *reader) receive(life context.Context) {
	defer close(r.ended)
	defer close(r.items)
	for {
		m, err := r.conn.ReceiveMessage(life)
		if err != nil {
			r.err = err
			return
		}
		r.heard()
		r.asked.Store(false)
		switch m := m.(type) {
		case *pgproto3.CopyData:
			err = r.received(life, m.Data)
		case *pgproto3.ErrorResponse:
			err = pgconn.ErrorResponseToPgError(m)
		case *pgproto3.NoticeResponse:
			err = r.noticed(m)
		case *pgproto3.CopyDone:
			err = errors.New("the server ended the stream")
		}
		if err != nil {
			r.err = err
			return
		}
	}
}

// errSkipped is returned if the server skips changes of tables, because the publication did not
// exist when they were written.
var errSkipped = errors.New("the server skips changes: the publication was not there")

// noticed returns errSkipped for the warning that PostgreSQL 18 sends, instead of an error, when it
// skips changes. The server sends no other warning of this class in the stream.
func (r *reader) noticed(m *pgproto3.NoticeResponse) error {
	const notInPrerequisiteState = "55000"
	if m.Code == notInPrerequisiteState && r.dec.prefix == "" {
		return errSkipped
	}
	return nil
}

// received decodes one message of the stream:
//
//	w: start of the log u64, its end u64, time i64, a message of pgoutput
//	k: end of the log u64, time i64, whether an answer is wanted u8
func (r *reader) received(life context.Context, data []byte) error {
	switch {
	case len(data) >= 25 && data[0] == 'w':
		out, err := r.dec.decode(data[25:])
		if err != nil {
			return err
		}
		return r.hand(life, out)
	case len(data) == 18 && data[0] == 'k':
		if data[17] != 0 {
			if err := r.confirm(0, 0); err != nil {
				return err
			}
		}
		if !r.dec.inside {
			return r.hand(life, item{next: source.Position{Hi: binary.BigEndian.Uint64(data[1:])}})
		}
		return nil
	}
	return errors.New("a message of the stream that is neither w nor k")
}

// hand passes an item to Next, unless it is empty.
func (r *reader) hand(life context.Context, i item) error {
	if i.has && i.message.Position.Less(r.from) {
		i.has, i.message = false, source.Message{} // drop the message: the server sends a transaction from its beginning, even if from is inside of it
	}
	if !i.has && i.next == (source.Position{}) {
		return nil
	}
	if !r.holds.Add(len(i.message.Value), life.Done()) {
		return life.Err()
	}
	select {
	case r.items <- i:
		return nil
	case <-life.Done():
		return life.Err()
	}
}

// Next returns messages, or none after waitMax. Without messages it requests an answer from the
// server, because a connection may break silently.
func (r *reader) Next(ctx context.Context, limit int) (source.Fetched, error) {
	got := source.Fetched{Left: -1}
	wait := time.NewTimer(waitMax)
	defer wait.Stop()
	select {
	case <-ctx.Done():
		return got, ctx.Err()
	case i, ok := <-r.items:
		if !ok {
			return got, r.explain(ctx, r.err)
		}
		r.take(&got, i)
	case <-wait.C:
		if got.Silent = r.asked.Swap(true); !got.Silent {
			if err := r.confirm(0, 1); err != nil {
				return got, err
			}
		}
	}
	for bytes := got.Bytes(); len(got.Messages) < limit && bytes < source.FetchBytesMax; {
		select {
		case i, ok := <-r.items:
			if ok {
				bytes += len(i.message.Value)
				r.take(&got, i)
				continue
			}
		default:
		}
		break
	}
	got.Next = r.next
	return got, nil
}

func (r *reader) take(got *source.Fetched, i item) {
	r.holds.Remove(len(i.message.Value))
	if i.has {
		got.Messages = append(got.Messages, i.message)
	}
	if r.next.Less(i.next) {
		r.next = i.next
	}
}

// Commit tells the server that it may remove the log below p. A later reader can still read the
// transactions that committed at p or later. Commit also requests the server's position, so that
// Next moves past parts of the log without messages.
func (r *reader) Commit(_ context.Context, p source.Position) error { return r.confirm(p.Hi, 1) }

// explain returns a *source.StalledError if the server did not find the publication. The server
// looks for a publication that existed when the decoded part of the log was written.
func (r *reader) explain(ctx context.Context, err error) error {
	const undefinedObject = "42704"
	if of, is := errors.AsType[*pgconn.PgError](err); !errors.Is(err, errSkipped) && (!is || of.Code != undefinedObject) {
		return err
	}
	if err := r.b.published(ctx); err != nil {
		return err
	}
	_, end, boundsErr := r.b.Bounds(ctx, 0)
	if boundsErr != nil {
		return boundsErr
	}
	return source.Lost(r.b.publishedAt(r.from, end), "publication %s was not there at position %s of the log: it was made, or made again, later. Changes before that cannot be read",
		r.b.cfg.Publication, r.from)
}

// confirm sends a status: r, written u64, flushed u64, applied u64, time i64, whether an
// answer is wanted u8.
func (r *reader) confirm(lsn uint64, answer byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.confirmed = max(r.mu.confirmed, lsn)
	m := []byte{'r'}
	for range 3 {
		m = binary.BigEndian.AppendUint64(m, r.mu.confirmed)
	}
	m = binary.BigEndian.AppendUint64(m, uint64(time.Since(epoch).Microseconds()))
	m = append(m, answer)
	encoded, err := (&pgproto3.CopyData{Data: m}).Encode(nil)
	if err != nil {
		return err
	}
	return r.conn.Frontend().SendUnbufferedEncodedCopyData(encoded)
}

// Close ends the stream.
func (r *reader) Close() error {
	r.cancel()
	<-r.ended
	r.b.setRead("")
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return r.conn.Close(ctx)
}
