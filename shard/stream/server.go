package stream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/rpc"
)

const (
	// servedAppendsMax bounds the appends that wait for one replica. A leader has at most two
	// unanswered appends, one of them a heartbeat. Further appends come from earlier leaders, or
	// have timed out at the sender.
	servedAppendsMax = 8
	// answersWait bounds how long the answer to a heartbeat waits for the answers to heartbeats
	// that arrived at the same time. So a replica with a hanging disk delays the answers of other
	// groups by at most answersWait.
	answersWait = 2 * time.Millisecond
	// answersBytesMax bounds the unsent answers to a node's appends. If more accumulate, because
	// the node does not read them, the connection is closed.
	answersBytesMax = 4 << 20
	// callAnswersBytesMax bounds the unsent answers to a node's method calls. Beyond it, an answer
	// waits until the earlier ones are being written. These answers are large, so a slow network
	// alone can make them accumulate; the connection stays open.
	callAnswersBytesMax = 1 << 20
)

var (
	errReplicaAbsent = errors.New("the replica is not open here")
	// errReplicaBusy is returned for a call beyond servedAppendsMax.
	errReplicaBusy = errors.New("too many appends wait for the replica")
)

// server passes the appends of other nodes to this node's replicas, and returns their answers. It
// never waits for a replica.
type server struct {
	streams  *Streams
	openings atomic.Uint64

	mu struct { // held while a call is delivered, so that Inbox.Close sees each call
		sync.RWMutex
		replicas map[uint32]*Inbox // by group
		streams  map[*servedStream]struct{}
		leaving  bool // leave was called
	}
}

func (s *server) init(streams *Streams) {
	s.streams = streams
	s.mu.replicas = make(map[uint32]*Inbox)
	s.mu.streams = make(map[*servedStream]struct{})
}

// Inbox holds the appends that wait for one replica's filter.
type Inbox struct {
	server  *server
	group   uint32
	to      uint64 // rpc.Addressee of the replica's Raft id
	opening uint64
	Calls   chan *Append
}

// Append is an unanswered append of another node.
type Append struct {
	Args   *raft.AppendEntriesRequest
	stream *servedStream
	id     uint64
}

// open implements Streams.Open.
func (s *server) open(group uint32, id raft.ServerID) *Inbox {
	r := &Inbox{
		server: s, group: group, to: rpc.Addressee(string(id)), opening: s.openings.Add(1),
		Calls: make(chan *Append, servedAppendsMax),
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.replicas[group] = r
	return r
}

// Close refuses waiting and later calls. The filter must have stopped receiving.
func (r *Inbox) Close() {
	r.server.mu.Lock()
	if r.server.mu.replicas[r.group] == r {
		delete(r.server.mu.replicas, r.group)
	}
	r.server.mu.Unlock()
	for {
		select {
		case call := <-r.Calls:
			call.stream.answer(&Answer{id: call.id, err: errReplicaAbsent}, true)
		default:
			return
		}
	}
}

// deliver passes a call to the addressed replica, or returns an error.
func (s *server) deliver(group uint32, to uint64, call *Append) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	r := s.mu.replicas[group]
	if r == nil {
		return fmt.Errorf("%w: group %d", errReplicaAbsent, group)
	}
	if r.to != to {
		return fmt.Errorf("group %d: %w", group, rpc.ErrOtherReplica)
	}
	select {
	case r.Calls <- call:
		return nil
	default:
		return errReplicaBusy
	}
}

// Offer implements rpc.Receiver: it serves a connection of another node.
func (s *server) Offer(conn net.Conn) error {
	t := &servedStream{server: s, conn: conn, wake: make(chan struct{}, 1), ended: make(chan struct{}), served: make(chan struct{})}
	if !s.keep(t) {
		return fmt.Errorf("%w: the node is closing", rpc.ErrEarly)
	}
	if !s.streams.start(t.serve) {
		s.drop(t)
		return net.ErrClosed
	}
	return nil
}

// keep registers the stream, so that leave can finish it. After leave, keep returns false.
func (s *server) keep(t *servedStream) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.mu.leaving {
		s.mu.streams[t] = struct{}{}
	}
	return !s.mu.leaving
}

func (s *server) drop(t *servedStream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.mu.streams, t)
}

// leave implements Streams.Leave.
func (s *server) leave() {
	s.mu.Lock()
	s.mu.leaving = true
	streams := slices.Collect(maps.Keys(s.mu.streams))
	s.mu.Unlock()
	for _, t := range streams {
		t.leaving.Store(true)
		t.write(func(dst []byte) []byte { return appendAnswerOf(dst, &Answer{leave: true}) })
	}
	grace := time.NewTimer(rpc.CloseGraceMax)
	defer grace.Stop()
	for _, t := range streams {
		select {
		case <-t.served:
		case <-grace.C:
			return
		}
	}
}

// servedStream is a connection on which another node's groups send appends.
type servedStream struct {
	server  *server
	conn    net.Conn
	wake    chan struct{}  // capacity 1; a token means that answers wait to be written
	ended   chan struct{}  // closed by end
	served  chan struct{}  // closed when serve returns
	calls   sync.WaitGroup // running method calls
	leaving atomic.Bool    // method calls are refused

	mu struct { // never held during I/O
		sync.Mutex
		out   []byte // answers to write
		owed  int    // number of calls that were read and are unanswered
		more  bool   // another call has arrived and is not read yet
		timer *time.Timer
		timed bool // the timer of answersWait runs
		last  bool // no more answers follow
		ended bool
		taken chan struct{} // closed by take; nil if nobody waits for it
	}
}

// serve reads calls until the connection ends. If the other node stops sending, serve first
// answers the running method calls.
func (t *servedStream) serve() {
	defer close(t.served)
	defer t.server.drop(t)
	t.write(func(dst []byte) []byte { return appendAnswerOf(dst, &Answer{serve: true}) })
	var writing sync.WaitGroup
	writing.Go(func() {
		if err := writeStream(t.conn, t.wake, t.ended, t.take); err != nil {
			t.end() // waiting answers are discarded
		}
	})
	streams := t.server.streams
	stop := context.AfterFunc(streams.ctx, func() { t.conn.Close() })
	err := readStream(t.conn, t.receive)
	if errors.Is(err, io.EOF) {
		t.calls.Wait()
		t.finish()
		writing.Wait()
	}
	stop()
	t.end()
	writing.Wait()
	t.calls.Wait()
	if errors.Is(err, wire.ErrBadMessage) {
		streams.cfg.Mux.Logger().Warn("closed a stream of appends", "from", t.conn.RemoteAddr().String(), "err", err)
	}
}

// receive handles one message. pending means that the next message has already arrived.
func (t *servedStream) receive(message []byte, pending bool) error {
	if len(message) > 0 && message[0] == streamCall {
		return t.receiveCall(message)
	}
	id, group, to, args, err := parseAppend(message)
	if err != nil {
		return err
	}
	t.owe(pending)
	if err := t.server.deliver(group, to, &Append{Args: args, stream: t, id: id}); err != nil {
		t.answer(&Answer{id: id, err: err}, false)
	}
	return nil
}

// receiveCall refuses a method call if this node is closing. Otherwise it answers the call in a
// goroutine, for which serve waits.
func (t *servedStream) receiveCall(message []byte) error {
	id, method, has, request, err := parseStreamCall(message)
	if err != nil {
		return err
	}
	calls := t.server.streams.cfg.Calls
	if calls == nil || t.leaving.Load() {
		t.write(func(dst []byte) []byte { return appendCallAnswer(dst, id, nil, errs.ErrDraining) })
		return nil
	}
	t.calls.Go(func() {
		ctx, cancel := context.WithTimeout(t.server.streams.ctx, has)
		defer cancel()
		body, err := calls.Answer(ctx, method, request)
		if err == nil && len(body) > streamAnswerMax {
			err = fmt.Errorf("%w: an answer of %d bytes", rpc.ErrTooLarge, len(body))
		}
		t.writeInTurn(func(dst []byte) []byte { return appendCallAnswer(dst, id, body, err) })
	})
	return nil
}

// writeInTurn blocks until fewer than callAnswersBytesMax bytes are queued, and then queues a
// message. If the connection ends first, it returns without queueing.
func (t *servedStream) writeInTurn(message func(dst []byte) []byte) {
	for {
		t.mu.Lock()
		if t.mu.ended || len(t.mu.out) < callAnswersBytesMax {
			t.writeLocked(message)
			t.mu.Unlock()
			return
		}
		if t.mu.taken == nil {
			t.mu.taken = make(chan struct{})
		}
		taken := t.mu.taken
		t.mu.Unlock()
		select {
		case <-taken:
		case <-t.ended:
			return
		}
	}
}

func (t *servedStream) write(message func(dst []byte) []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.writeLocked(message)
}

func (t *servedStream) writeLocked(message func(dst []byte) []byte) {
	if t.mu.ended {
		return
	}
	t.mu.out = appendMessage(t.mu.out, message)
	if len(t.mu.out) > answersBytesMax {
		t.conn.Close()
	}
	wake(t.wake)
}

// finish marks the queued answers as the last.
func (t *servedStream) finish() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.last = true
	wake(t.wake)
}

// owe counts a received call as unanswered. pending means that the next message has already
// arrived.
func (t *servedStream) owe(pending bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.owed++
	t.mu.more = pending
}

// answer queues an answer. If atOnce is false, the answer waits, at most answersWait, for the
// answers to calls that arrived at the same time.
func (t *servedStream) answer(a *Answer, atOnce bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.owed--
	if t.mu.ended {
		return
	}
	t.mu.out = appendMessage(t.mu.out, func(dst []byte) []byte { return appendAnswerOf(dst, a) })
	switch {
	case len(t.mu.out) > answersBytesMax:
		t.conn.Close()
	case atOnce || t.mu.owed == 0 && !t.mu.more:
		wake(t.wake)
	case t.mu.timed:
	case t.mu.timer == nil:
		t.mu.timer, t.mu.timed = time.AfterFunc(answersWait, t.waited), true
	default:
		t.mu.timer.Reset(answersWait)
		t.mu.timed = true
	}
}

// waited writes the answers that have waited for answersWait.
func (t *servedStream) waited() {
	t.mu.Lock()
	t.mu.timed = false
	t.mu.Unlock()
	wake(t.wake)
}

// take returns the answers to write; see writeStream.
func (t *servedStream) take(spare []byte) (out []byte, last bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	out, t.mu.out = t.mu.out, spare
	if t.mu.taken != nil {
		close(t.mu.taken)
		t.mu.taken = nil
	}
	return out, t.mu.last
}

// end closes the connection. Later answers are discarded.
func (t *servedStream) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.ended {
		return
	}
	t.mu.ended = true
	if t.mu.timer != nil {
		t.mu.timer.Stop()
	}
	t.conn.Close()
	close(t.ended)
}

// Respond answers a call with the result of raft or its filter. ok is false if there is no result,
// because the group was closed.
func (r *Inbox) Respond(call *Append, answer raft.RPCResponse, ok bool) {
	a := Answer{id: call.id, err: answer.Error, Opening: r.opening}
	resp, judged := answer.Response.(*raft.AppendEntriesResponse)
	switch {
	case !ok || !judged && a.err == nil:
		a.err = errReplicaAbsent
	case a.err == nil:
		a.Term, a.Last, a.Success, a.NoPause = resp.Term, resp.LastLog, resp.Success, resp.NoRetryBackoff
	}
	call.stream.answer(&a, len(call.Args.Entries) > 0)
}
