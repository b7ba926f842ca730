package source

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/countd/countd/source/sink"
)

// The states of a partition. A paused source has no runners; package sources shows its partitions
// as paused.
const (
	StateRunning = "running"
	StatePaused  = "paused"
	StateStalled = "stalled" // only an operator can decide how to go on
)

// The reasons that errors are counted by.
const (
	reasonMoved   = "moved"
	reasonStalled = "stalled"
	reasonBroker  = "broker"
)

// Status is the state of a partition, as its runner sees it.
type Status struct {
	State    string
	Known    bool      // Position and End were read
	Looked   time.Time // when End was read
	Reason   string    // why it is stalled, or does not go on
	Position Position  // every shard has handled all below it
	End      Position  // of the queue
	// LagSeconds is how old the last applied message is while others wait, or for how long they wait, if
	// none was applied yet; 0 while none waits, and -1 while messages wait whose times are not known.
	LagSeconds float64
	Applied    uint64  // messages, by all runners that share the Counts
	Rejected   uint64  // messages, or ops of messages, by the same runners
	Rate       float64 // messages a second, over the last seconds
	Errors     map[string]uint64

	left    int64 // messages that were not fetched, if positions do not count them; -1 if nothing does
	waiting int64 // messages that were fetched, and are not applied
}

// Lag returns how many messages wait, if anything counts them.
func (s *Status) Lag() (messages uint64, known bool) {
	switch {
	case !s.Known:
		return 0, false
	case !s.Position.Less(s.End):
		return 0, true
	case s.Position.Hi == 0 && s.End.Hi == 0:
		return s.End.Lo - s.Position.Lo, true
	}
	return uint64(max(0, s.left) + s.waiting), s.left >= 0
}

// Counts counts the messages of one partition, and only rises. The runners that read the
// partition on a node, one after another, share it.
type Counts struct {
	applied, rejected atomic.Uint64
}

// Load returns how many messages were applied, and how many messages or ops rejected.
func (c *Counts) Load() (applied, rejected uint64) { return c.applied.Load(), c.rejected.Load() }

type status struct {
	counts *Counts
	mu     struct {
		sync.Mutex
		Status
		ok       time.Time // when it last could read and apply; see silentMax
		lastTime time.Time // of the last applied message
		timeless bool      // the last message that was fetched or applied has no time
		behind   time.Time // since when messages wait; zero if none does
		shard    string    // why a shard is behind, "" if none is
		doing    string    // what takes long, "" for nothing
		counted  uint64    // messages that were applied before the last call of rate
		// what the next call of setEnd will show, if nothing counts the messages
		nextEnd    Position
		nextLooked time.Time
	}
}

func (s *status) get() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.mu.Status
	out.Errors = maps.Clone(out.Errors)
	out.Applied, out.Rejected = s.counts.Load()
	out.LagSeconds = s.lagLocked()
	if silent := time.Since(s.mu.ok); out.State == StateRunning && silent > silentMax {
		out.State = StateStalled
		out.Reason = cmp.Or(s.mu.doing, out.Reason, "the queue, or a shard, has not answered for a while")
	}
	return out
}

// silentMax is after how long without success a partition is stalled, whatever the reason: longer than
// a broker, or the leader of a shard, is away mostly.
const silentMax = 15 * time.Second

// lagLocked returns LagSeconds.
func (s *status) lagLocked() float64 {
	now := time.Now()
	switch {
	case !s.mu.Position.Less(s.mu.End):
		return 0
	case s.mu.timeless:
		return -1
	case !s.mu.lastTime.IsZero() && s.mu.lastTime.Before(now):
		return now.Sub(s.mu.lastTime).Seconds()
	case s.mu.behind.IsZero():
		return -1
	}
	return now.Sub(s.mu.behind).Seconds()
}

// behindLocked keeps behind.
func (s *status) behindLocked() {
	if !s.mu.Position.Less(s.mu.End) {
		s.mu.behind = time.Time{}
	} else if s.mu.behind.IsZero() {
		s.mu.behind = time.Now()
	}
}

// isTime reports whether a time is when a message was written: producers of Kafka and Redis may choose
// what they like.
func isTime(t time.Time) bool {
	return t.Year() >= 2000 && time.Until(t) < 24*time.Hour
}

// set runs change, which sets fields of mu.
func (s *status) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

// running clears the reason of an earlier session: it could read and apply.
func (s *status) running() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.State, s.mu.Reason, s.mu.ok = StateRunning, s.mu.shard, time.Now()
}

// idle is running for a session that fetched nothing although messages wait, if anything counts
// them.
func (s *status) idle() {
	s.mu.Lock()
	lag, known := s.mu.Lag()
	waits := known && lag > 0
	if waits {
		s.mu.Reason = fmt.Sprintf("%d messages wait from position %s on, and the queue hands out none of them; in Kafka, a producer may have a transaction open", lag, s.mu.Position)
	}
	s.mu.Unlock()
	if !waits {
		s.running()
	}
}

// setPosition sets the position, and the time of the last message if it is known.
func (s *status) setPosition(at Position, last time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.Position = at
	if s.mu.End.Less(at) {
		s.mu.End = at // End was read before the last messages were
	}
	if isTime(last) {
		s.mu.lastTime = last
	}
	s.behindLocked()
}

// setEnd sets the end of the queue, and when it was read: messages that came later are not in
// the lag.
//
// If nothing counts the messages that wait, it shows the end that was read the time before. The
// end also rises by what is not for the source, so the position is always behind the end of a
// moment ago. If no message waits, it has passed the end of a second ago.
func (s *status) setEnd(end Position, looked time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.End, s.mu.Looked, s.mu.Known = end, looked, true
	if s.mu.left < 0 && !s.mu.nextLooked.IsZero() {
		s.mu.End, s.mu.Looked = s.mu.nextEnd, s.mu.nextLooked
	}
	s.mu.nextEnd, s.mu.nextLooked = end, looked
	s.behindLocked()
}

func (s *status) applied(messages int)  { s.counts.applied.Add(uint64(messages)) }
func (s *status) rejected(messages int) { s.counts.rejected.Add(uint64(messages)) }

// rate updates Rate, after since.
func (s *status) rate(since time.Duration) {
	const weight = 0.3 // of the newest second: five of them are most of the rate
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.counts.applied.Load()
	now := float64(all-s.mu.counted) / since.Seconds()
	s.mu.counted = all
	s.mu.Rate += weight * (now - s.mu.Rate)
}

// opJSON returns an op as it would be in a message.
func opJSON(o *sink.Op) string {
	cells := make(map[string]int64, len(o.Cells))
	for _, c := range o.Cells {
		cells[c.Column] = c.Value
	}
	id := strconv.FormatUint(o.ID, 10)
	fields := map[string]any{"keyspace": o.Keyspace, "id": id, "add": cells}
	if o.Keyspace == unread {
		fields = map[string]any{"user": id, "add": cells}
	}
	if o.Kind == sink.Set {
		delete(fields, "add")
		fields["set"] = cells
	}
	if o.HasFloor {
		fields["floor"] = o.Floor
	}
	if o.Kind.OfMember() {
		fields = map[string]any{
			"keyspace": o.Keyspace, "column": o.Cells[0].Column, "id": id,
			"member": strconv.FormatUint(uint64(o.Cells[0].Value), 10), "set": o.Kind == sink.Join,
		}
	}
	text, err := json.Marshal(fields)
	if err != nil {
		return err.Error() // it has plain fields only
	}
	return string(text)
}
