package dedup

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/raftfsm/codec"
)

func TestKeys(t *testing.T) {
	h := newHistory(t)
	h.want(0, keyed("k", "body"), Applied, 1)
	h.want(minutes(9), keyed("k", "body"), Duplicate, 1)
	h.want(minutes(9), keyed("k", "other"), Conflict, 1)
	now := minutes(1 << 20)
	h.want(now, keyed(uuidv7(now), "b"), Applied, 2)
	h.want(now, keyed(uuidv7(now-minutes(10)-1), "b"), Expired, 2)
	h.want(now, keyed(uuidv7(now+minutes(10)+1), "b"), Expired, 2)
	ahead := uuidv7(now + minutes(10)) // the client's clock is ahead
	h.want(now, keyed(ahead, "b"), Applied, 3)
	h.want(now+minutes(20)-1, keyed(ahead, "b"), Duplicate, 3)
	h.want(now+minutes(20), keyed(ahead, "b"), Duplicate, 3)
	h.want(now+minutes(20)+1, keyed(ahead, "b"), Expired, 3)
}

// After a key was forgotten, a longer horizon does not make the memory accept it again. After the
// horizon was shortened, the memory keeps a key from a fast clock until the key is too old to be
// accepted.
func TestKeysOutliveChangesOfTheHorizon(t *testing.T) {
	h, now := newHistory(t), minutes(1<<20)
	within := func(horizon time.Duration) { h.limits.KeyHorizon = horizon }
	h.want(now, keyed(uuidv7(now), "b"), Applied, 1)
	h.want(now+minutes(21), keyed("other", ""), Applied, 2) // this request makes the memory forget the first key
	within(time.Hour)
	h.want(now+minutes(21), keyed(uuidv7(now), "b"), Expired, 2)
	h.want(now+minutes(22), keyed(uuidv7(now+minutes(21)), "b"), Applied, 3)
	ahead := uuidv7(now + minutes(80))
	h.want(now+minutes(23), keyed(ahead, "b"), Applied, 4)
	within(time.Minute)
	for _, at := range []int64{30, 78, 79, 80, 81} {
		h.want(now+minutes(at), keyed(ahead, "b"), Duplicate, 4)
	}
	h.want(now+minutes(82), keyed(ahead, "b"), Expired, 4)
	if n := h.m.keyRecords(); n != 0 {
		t.Errorf("%d keys are kept", n)
	}
}

// The test checks each line of the table in DESIGN.md: the outcomes of parts whose key another
// shard judged.
func TestKeysThatAnotherShardJudged(t *testing.T) {
	h, now := newHistory(t), minutes(1<<20)
	const far = int64(1) << 50 // the judges' log times are far from this shard's
	other := func(key string, judge uint32, met, floor int64) RequestID {
		id := keyed(key, "other body")
		return id.JudgedBy(judge, Use{Met: met, Floor: floor})
	}
	h.want(now, judgedKey("k", 1, far, far-10), Applied, 1)
	h.want(now+minutes(9), judgedKey("k", 1, far, far-5), Duplicate, 1)
	h.want(now+minutes(9), other("k", 1, far, far-5), Conflict, 1)
	h.want(now+minutes(9), judgedKey("k", 1, far-1, far-10), Expired, 1)
	h.want(now+minutes(9), other("k", 1, far-1, far-10), Expired, 1)
	h.want(now+minutes(9), judgedKey("k", 2, 7, 5), Full, 1)
	h.want(now+minutes(9), other("k", 2, 7, 5), Conflict, 1)
	h.want(now+minutes(9), keyed("k", "body"), Full, 1)
	h.want(now+minutes(9), keyed("k", "other body"), Conflict, 1)
	h.want(now+minutes(9), judgedKey("k", 1, far+20, far+1), Applied, 2) // a new use
	h.want(now+minutes(9), judgedKey("k", 1, far, far-10), Expired, 2)
	h.want(now+minutes(9), judgedKey("k", 1, far+30, far+20), Duplicate, 2) // the judge was restored, and accepted the key again
	h.want(now+minutes(9), judgedKey("k", 1, far+20, far+5), Expired, 2)
	h.want(now+minutes(9), other("k", 1, far+50, far+31), Applied, 3)
	h.want(now+minutes(9), judgedKey("l", 2, 3, 3), Applied, 4)
	h.reopen(t)
	later := now + minutes(20)
	h.want(later, judgedKey("k", 1, far+50, far+31), Expired, 4)
	h.want(later, judgedKey("new here", 1, far+50, far+31), Expired, 4)
	h.want(later, judgedKey("l", 2, 3, 3), Expired, 4)
	h.reopen(t)
	h.want(later, judgedKey("l", 1, far+51, far+31), Applied, 5)
	h.want(later, judgedKey("k", 2, 4, 4), Applied, 6)
	h.want(later, judgedKey("k", 2, 4, 4), Duplicate, 6)
}

// If another shard judged a use, the record of the use counts until an entry drops the record. That
// may take several entries.
func TestJudgedKeysThatAreNotDroppedYet(t *testing.T) {
	h := newHistory(t)
	h.limits.KeysMax = KeysMaxMax
	const keys = 2*droppedPerEntryMax + 1
	for i := range int64(keys) {
		h.want(0, judgedKey(fmt.Sprint(i), 1, i+1, 0), Applied, i+1)
	}
	last := fmt.Sprint(keys - 1)
	h.want(minutes(20), judgedKey(last, 1, keys, 0), Duplicate, keys)
	h.want(minutes(20), judgedKey(last, 1, keys, 0), Duplicate, keys)
	h.want(minutes(20), judgedKey(last, 1, keys, 0), Expired, keys)
	if n := h.m.keyRecords(); n != 0 {
		t.Errorf("%d keys are kept", n)
	}
}

// If a shard had the record of a use when the shard was restored, one late copy of the part counts.
// If the shard had dropped the record before, no late copy counts.
func TestLateCopiesOnARestoredShard(t *testing.T) {
	h, now := newHistory(t), minutes(1<<20)
	h.want(now, judgedKey("dropped", 1, 10, 5), Applied, 1)
	h.want(now+minutes(20), judgedKey("known", 1, 20, 15), Applied, 2)
	h.want(now+minutes(20), ByRestore(1, true), Applied, 3)
	h.reopen(t)
	h.want(now+minutes(20), judgedKey("dropped", 1, 10, 5), Expired, 3)
	h.want(now+minutes(20), judgedKey("known", 1, 20, 15), Applied, 4)
	h.want(now+minutes(20), judgedKey("known", 1, 20, 15), Duplicate, 4)
}

// A use that replaces an earlier use needs a second record until the first record is dropped. If
// the memory is full, it refuses the use and stores nothing.
func TestRoomForTheNextUseOfAKey(t *testing.T) {
	h := newHistory(t)
	h.limits.KeysMax = 2
	h.want(0, judgedKey("k", 1, 10, 5), Applied, 1)
	h.want(0, judgedKey("k", 1, 20, 15), Applied, 2)
	h.want(0, judgedKey("k", 1, 30, 25), Full, 2)
	h.want(0, judgedKey("k", 1, 20, 15), Duplicate, 2)
	h.want(minutes(20), judgedKey("k", 1, 30, 25), Applied, 3)
	h.want(minutes(20), judgedKey("k", 1, 20, 15), Expired, 3)
}

// If a full memory has expired keys, an entry drops as many of them as it needs for its own keys.
func TestFullMemoryForgetsWhatIsDue(t *testing.T) {
	o, l := New(), testLimits
	l.KeysMax = 2 * droppedPerEntryMax
	o.Tick(0, l)
	fill := func(round int) {
		for i := range l.KeysMax {
			id := keyed(fmt.Sprint(round, " ", i), "")
			if outcome := o.Judge(&id); outcome != Applied {
				t.Fatalf("round %d, key %d: outcome %d", round, i, outcome)
			}
		}
	}
	fill(0)
	o.Tick(minutes(20), l)
	fill(1)
	if id := keyed("one more", ""); o.Judge(&id) != Full || o.keyRecords() != l.KeysMax {
		t.Errorf("%d keys", o.keyRecords())
	}
}

func TestKeysAreBounded(t *testing.T) {
	h := newHistory(t)
	for i := range int64(testLimits.KeysMax) {
		h.want(0, keyed(fmt.Sprint(i), ""), Applied, i+1)
	}
	h.want(0, keyed("one more", ""), Full, 50)
	h.want(0, keyed("7", ""), Duplicate, 50)
	h.want(minutes(10), keyed("one more", ""), Full, 50)
	h.want(minutes(10)+1, keyed("one more", ""), Applied, 51)
	if o := h.m; o.keyRecords() != 1 || len(o.keys.at.own) != 1 {
		t.Errorf("%d keys, %d by name", o.keyRecords(), len(o.keys.at.own))
	}
}

// The memory accepts nearly KeysMax keys in each horizon, even after a key that a client with a
// fast clock created.
func TestKeysOfAHorizonFit(t *testing.T) {
	h, now := newHistory(t), minutes(1<<20)
	h.want(now, keyed(uuidv7(now+minutes(9)), ""), Applied, 1)
	step := testLimits.KeyHorizon.Milliseconds() / int64(testLimits.KeysMax-2)
	for i := range int64(1000) {
		h.want(now+i*step, keyed(fmt.Sprint(i), ""), Applied, i+2)
	}
}

// keyModel never forgets a key, and computes the outcome of each request.
type keyModel struct {
	limits     Limits
	now, floor int64
	known      map[string]keySeen
}

type keySeen struct {
	body string
	last int64
}

// outcome returns the outcome of a request. born is the time in the key, or 0 if the key contains
// none.
func (m *keyModel) outcome(now int64, key, body string, born int64) Outcome {
	horizon := m.limits.KeyHorizon.Milliseconds()
	m.now = max(m.now, now)
	m.floor = max(m.floor, m.now-horizon)
	if seen, ok := m.known[key]; ok && seen.last >= m.floor {
		if seen.body != body {
			return Conflict
		}
		return Duplicate
	}
	if born != 0 && (born < m.floor || born > m.now+horizon) {
		return Expired
	}
	m.known[key] = keySeen{body, max(m.now, born)}
	return Applied
}

// Two memories that get a key at the same times return the same outcomes, whatever other requests
// they get, whenever they are restored from a snapshot, and whatever the horizon is. Within a
// horizon, a key is applied once. A UUIDv7 is applied only once at any time. Any other key counts
// as new once the horizon has passed.
func TestShardsAgreeOnKeys(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0))
		limits := testLimits
		limits.KeysMax = 1 << 16 // never reached
		m := &keyModel{limits: limits, known: map[string]keySeen{}}
		quiet, busy := New(), New()
		applied := map[string]int{}
		now, others := minutes(1<<20), 0
		for i := range rapid.IntRange(1, 200).Draw(rt, "requests") {
			now += []int64{0, 1, -5, minutes(1), minutes(3), minutes(10)}[r.IntN(6)]
			if r.IntN(30) == 0 {
				m.limits.KeyHorizon = []time.Duration{time.Minute, 10 * time.Minute, time.Hour}[r.IntN(3)]
			}
			key, body, born := fmt.Sprint(r.IntN(5)), fmt.Sprint(r.IntN(8)/7), int64(0)
			if r.IntN(2) == 0 {
				born = (now - minutes(15) + r.Int64N(minutes(30))) / minutes(1) * minutes(1)
				key = uuidv7(born)
			}
			if r.IntN(50) == 0 { // add more keys than one entry drops
				busy.Tick(now, m.limits)
				for range droppedPerEntryMax + 1000 {
					id := keyed(fmt.Sprint("other", others), "")
					busy.Judge(&id)
					others++
				}
			}
			if r.IntN(30) == 0 {
				busy = restored(rt, busy)
			}
			want := m.outcome(now, key, body, born)
			for name, o := range map[string]*Memory{"quiet": quiet, "busy": busy} {
				o.Tick(now, m.limits)
				id := keyed(key, body)
				if got := o.Judge(&id); got != want {
					rt.Fatalf("request %d, key %s, %s shard: outcome %d, want %d", i, key, name, got, want)
				}
			}
			if want == Applied {
				if applied[key]++; born != 0 && applied[key] > 1 {
					rt.Fatalf("request %d: key %s is applied again", i, key)
				}
			}
		}
	})
}

// restored returns a memory that has loaded a snapshot of o.
// A snapshot has more keys than one section takes, some of them ahead of the log's time.
func TestKeysOfSeveralSections(t *testing.T) {
	o, limits, now := New(), testLimits, minutes(1<<20)
	limits.KeysMax = KeysMaxMax
	o.Tick(now, limits)
	ids := []RequestID{keyed(uuidv7(now+minutes(9)), "b"), keyed(uuidv7(now+minutes(10)), "b")}
	for i := range 2*KeysOfSection - 1 { // so the first key ahead is the last of its section
		ids = append(ids, keyed(fmt.Sprint(i), "b"))
	}
	for i := range ids {
		if got := o.Judge(&ids[i]); got != Applied {
			t.Fatalf("key %d: outcome %d", i, got)
		}
	}
	var written, again bytes.Buffer
	write := func(m *Memory, to *bytes.Buffer) {
		w := codec.NewStreamWriter(to)
		must.Do(t, w.Head(codec.KindCounters, codec.Head{Route: codec.Whole}, -1))
		must.Do(t, m.Capture().Write(w))
		must.Do(t, w.End(0, 0))
	}
	write(o, &written)
	loaded, keys := New(), 0
	for r := codec.NewStreamReader(bytes.NewReader(written.Bytes())); ; {
		kind, p, err := r.Next()
		must.Do(t, err)
		if kind == codec.StreamEnd {
			break
		}
		if IsSection(kind) {
			must.Do(t, loaded.Load(kind, p))
		}
		if kind == codec.StreamKeys {
			keys++
		}
	}
	if keys != 3 || loaded.keyRecords() != len(ids) {
		t.Fatalf("%d sections with %d keys, want 3 with %d", keys, loaded.keyRecords(), len(ids))
	}
	if write(loaded, &again); !bytes.Equal(written.Bytes(), again.Bytes()) {
		t.Error("the snapshot of the loaded keys differs")
	}
	loaded.Tick(now, limits)
	for _, i := range []int{0, 1, 2, len(ids) - 1} {
		if got := loaded.Judge(&ids[i]); got != Duplicate {
			t.Errorf("key %d again: outcome %d", i, got)
		}
	}
	v := o.Capture()
	wrong := New()
	must.Do(t, wrong.restoreProducers(v.appendProducers(nil)))
	must.Do(t, wrong.restoreKeys(v.appendKeys(nil, KeysOfSection)))
	if err := wrong.restoreKeys(v.appendKeys(nil, 0)); !errors.Is(err, codec.ErrSnapshot) {
		t.Errorf("keys behind those ahead of the log's time: %v", err)
	}
}

func restored(t rapid.TB, o *Memory) *Memory {
	v, again := o.Capture(), New()
	for _, err := range []error{
		again.restoreProducers(v.appendProducers(nil)),
		again.restoreForgotten(v.appendForgotten(nil)),
		again.restoreKeys(v.appendKeys(nil, 0)),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return again
}
