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

// These are the states of a partition. A paused source has no runners, so package sources sets
// StatePaused.
const (
	StateRunning = "running"
	StatePaused  = "paused"
	StateStalled = "stalled" // only an operator can decide how to continue
)

// Errors are counted by these reasons.
const (
	reasonMoved   = "moved"
	reasonStalled = "stalled"
	reasonBroker  = "broker"
)

// Status is the state of a partition as its runner sees it.
type Status struct {
	State    string
	Known    bool      // Position and End are known
	Looked   time.Time // when End was read
	Reason   string    // why the partition is stalled or makes no progress
	Position Position  // all shards have handled the messages below Position
	End      Position  // end of the queue
	// LagSeconds is 0 while no message waits. Otherwise it is the age of the last applied message
	// or, if none was applied, the time for which messages have waited. It is -1 if the messages
	// have no usable times.
	LagSeconds float64
	Applied    uint64  // number of messages applied by all runners that share the Counts
	Rejected   uint64  // number of messages, or of single ops, rejected by the same runners
	Rate       float64 // applied messages per second, over the last seconds
	Errors     map[string]uint64

	left    int64 // number of messages that are not fetched yet, if positions do not show it; -1 if unknown
	waiting int64 // number of messages that are fetched, but not applied
}

// Lag returns the number of messages that wait, if it is known.
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

// Counts counts the messages of one partition. All runners of the partition on a node share it.
type Counts struct {
	applied, rejected atomic.Uint64
}

// Load returns the number of applied messages, and the number of rejected messages or ops.
func (c *Counts) Load() (applied, rejected uint64) { return c.applied.Load(), c.rejected.Load() }

type status struct {
	counts *Counts
	mu     struct {
		sync.Mutex
		Status
		ok       time.Time // last time when the runner could read and apply; see silentMax
		lastTime time.Time // time of the last applied message
		timeless bool      // the last fetched message has no usable time
		behind   time.Time // when messages began to wait; zero if none waits
		shard    string    // text about a shard that does not answer, or ""
		doing    string    // what the session does that may take long, or ""
		counted  uint64    // number of applied messages at the last call of rate
		// If the number of waiting messages is unknown, nextEnd and nextLooked become End and
		// Looked at the next call of setEnd.
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

// A partition is stalled if its runner could not read and apply for silentMax. Brokers and leaders
// of shards are rarely away for longer.
const silentMax = 15 * time.Second

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

// behindLocked updates behind.
func (s *status) behindLocked() {
	if !s.mu.Position.Less(s.mu.End) {
		s.mu.behind = time.Time{}
	} else if s.mu.behind.IsZero() {
		s.mu.behind = time.Now()
	}
}

// isTime reports whether a time is plausible, because producers of Kafka and Redis may set any
// time.
func isTime(t time.Time) bool {
	return t.Year() >= 2000 && time.Until(t) < 24*time.Hour
}

// set calls change, which may set fields of mu, under the lock.
func (s *status) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

// running records that the runner can read and apply, and clears the reason that an earlier session
// has set.
func (s *status) running() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.State, s.mu.Reason, s.mu.ok = StateRunning, s.mu.shard, time.Now()
}

// idle does the same as running, for a session without fetched messages. But if the queue has
// messages that were not fetched, idle sets a reason that says so.
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

// setPosition sets the position, and the time of the last applied message if it is usable.
func (s *status) setPosition(at Position, last time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.Position = at
	if s.mu.End.Less(at) {
		s.mu.End = at // the messages below at were written after End was read
	}
	if isTime(last) {
		s.mu.lastTime = last
	}
	s.behindLocked()
}

// setEnd sets the end of the queue, which was read at looked.
//
// If the number of waiting messages is unknown, End becomes the end of the previous call, for this
// reason: messages that the source does not read also raise the end, so the position is always
// below the newest end. But if no message waits, the position has reached the previous end.
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

// rate updates Rate. elapsed is the time since the last call.
func (s *status) rate(elapsed time.Duration) {
	const weight = 0.3 // weight of the newest second; the last five seconds make up most of the rate
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.counts.applied.Load()
	now := float64(all-s.mu.counted) / elapsed.Seconds()
	s.mu.counted = all
	s.mu.Rate += weight * (now - s.mu.Rate)
}

// opJSON returns an op in the JSON form in which a message has it.
func opJSON(o *sink.Op) string {
	cells := make(map[string]int64, len(o.Cells))
	for _, c := range o.Cells {
		cells[c.Column] = c.Value
	}
	id, member := strconv.FormatUint(o.ID, 10), ""
	if o.Kind.OfMember() {
		member = strconv.FormatUint(uint64(o.Cells[0].Value), 10)
	}
	if t := o.Texts; t != nil {
		if t.ID != "" && !t.IDNumber {
			id = t.ID
		}
		if t.Member != "" && !t.MemberNumber {
			member = t.Member
		}
	}
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
			"member": member, "set": o.Kind == sink.Join,
		}
	}
	text, err := json.Marshal(fields)
	if err != nil {
		return err.Error() // cannot happen: every field can be encoded
	}
	return string(text)
}
