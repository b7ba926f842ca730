package dedup

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/source/sink"
)

// splitPair is the memory of a part of a shard, and a memory that shares nothing with it.
type splitPair struct{ part, apart *Memory }

// split splits a memory, whose group is 1, into parts. The judges of the parts have numbers from 100
// on.
func split(o *Memory, parts int) []*Memory {
	from, to := o.judging.route, make([]Part, parts)
	if o.judging.names == nil {
		from = codec.Whole
	}
	for i := range to {
		to[i].Route = codec.Route{Modulus: from.Modulus * uint32(parts), Residue: from.Residue + uint32(i)*from.Modulus}
		to[i].Judge = 100*to[i].Route.Modulus + to[i].Route.Residue
	}
	return append([]*Memory{o}, o.Split(1, to)...)
}

// encoded returns the sections of a memory in a snapshot.
func encoded(v *View) []byte {
	state := v.appendKeys(v.appendForgotten(v.appendProducers(nil)), 0)
	if state = v.positions.appendTo(state); v.judging.names == nil {
		return state
	}
	return v.judging.appendTo(state)
}

// copied returns a memory that has loaded a snapshot of o.
func copied(t rapid.TB, o *Memory) *Memory {
	again := restored(t, o)
	again.limits = o.limits
	if o.judging.names != nil {
		if err := again.judging.load(o.judging.appendTo(nil)); err != nil {
			t.Fatal(err)
		}
	}
	if p := o.Capture().positions; !p.empty() {
		if err := again.positions.load(p.appendTo(nil)); err != nil {
			t.Fatal(err)
		}
	}
	return again
}

// judgedBy returns the id of a part of a request that a judge with earlier names accepted at met.
func judgedBy(id RequestID, met, floor int64, judge uint32, earlier ...uint32) RequestID {
	use := Use{Met: met, Floor: floor, Names: [1 + earlierMax]uint32{judge}}
	copy(use.Names[1:], earlier)
	return id.JudgedBy(0, use)
}

// anyRequest returns a request of a few producers, keys, judges and partitions, or of a restore. The
// position is that of partition 0 of source 1.
func anyRequest(r *rand.Rand, now int64, at PositionAnswer) RequestID {
	n := r.IntN(400)
	switch k := r.IntN(100); {
	case k < 40:
		return seq(fmt.Sprint("p", n%60), uint64(r.IntN(200)))
	case k < 60:
		return keyed(fmt.Sprint("key", n), fmt.Sprint(r.IntN(8)/7))
	case k < 75:
		return keyed(uuidv7(now+int64(r.IntN(300)-200)*minutes(1)/10), "")
	case k < 90:
		met := now + int64(r.IntN(40)-20)*minutes(1)
		id := keyed(fmt.Sprint("key", n), fmt.Sprint(r.IntN(8)/7))
		return judgedBy(id, met, met-minutes(int64(r.IntN(12))), uint32(1+r.IntN(3)), []uint32{1, 2, 3}[:r.IntN(4)]...)
	case k < 98:
		modes := []SectionMode{SectionAdvance, SectionAdvance, SectionBegin, SectionRead}
		s := SourceSection{PositionKey: PositionKey{Source: 1}, Mode: modes[r.IntN(4)], Epoch: at.Epoch + uint32(r.IntN(2)), Prev: at.At, Next: at.At}
		s.Next.Lo += uint64(r.IntN(3))
		if r.IntN(20) == 0 {
			s.PositionKey, s.Mode = PositionKey{Source: 2 + uint64(n)}, []SectionMode{SectionBegin, SectionForget}[r.IntN(2)]
		}
		return BySource(s)
	case k == 98:
		return ByRestorePositions(uint64(n), RestoredPositions{Closed: n%3 == 0, All: []PositionRecord{{PositionKey{Source: 1}, Checkpoint{Epoch: 1, At: sink.Position{Lo: uint64(n)}}}}})
	}
	return ByRestore(uint64(n), r.IntN(3) == 0)
}

// The parts of a memory share blocks and indexes. Each part behaves as a memory that shares nothing,
// whichever requests the other parts get. A capture of the memory from before a split stays as it
// was.
func TestPartsAgainstCopies(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		limits, now := Limits{KeyHorizon: 10 * time.Minute, KeysMax: 500, ProducerIdle: time.Hour, ProducersMax: 40}, minutes(1<<20)
		pairs := []splitPair{{New(), New()}}
		type captured struct {
			view  *View
			bytes []byte
		}
		var views []captured
		for range rapid.IntRange(1, 60).Draw(t, "entries") {
			i := r.IntN(len(pairs))
			p := &pairs[i]
			switch k := r.IntN(20); {
			case k < 3 && len(pairs) < 9:
				all := split(p.part, 2+r.IntN(2))
				for _, part := range all[1:] {
					pairs = append(pairs, splitPair{part, copied(t, pairs[i].apart)})
					pairs[len(pairs)-1].apart.judging = part.judging
				}
				pairs[i].apart.judging = all[0].judging
				continue
			case k == 3:
				p.part = copied(t, p.part)
			case k == 4:
				p.apart = copied(t, p.apart)
			case k == 5:
				v := p.part.Capture()
				views = append(views, captured{v, encoded(v)})
			case k == 6:
				limits.KeysMax, limits.ProducersMax = 200+r.IntN(400), 20+r.IntN(40)
			case k < 12:
				now += minutes(int64(r.IntN(3)))
			case k == 12:
				now += minutes(int64(r.IntN(40)))
			}
			now += int64(r.IntN(2000))
			p.part.Tick(now, limits)
			p.apart.Tick(now, limits)
			at := BySource(SourceSection{PositionKey: PositionKey{Source: 1}})
			for range r.IntN(200) {
				id := anyRequest(r, now, p.apart.Position(&at))
				got, want := p.part.Judge(&id), p.apart.Judge(&id)
				if got != want {
					t.Fatalf("part %d of %d: outcome %d of %+v, want %d", i, len(pairs), got, id, want)
				}
				if want == Applied && r.IntN(3) == 0 {
					again := []Outcome{Refused, PartlyRefused}[r.IntN(2)]
					p.part.SetRepeat(&id, again)
					p.apart.SetRepeat(&id, again)
				}
			}
			if r.IntN(8) == 0 {
				for i, p := range pairs {
					if !bytes.Equal(encoded(p.part.Capture()), encoded(p.apart.Capture())) || p.part.PositionsDigest() != p.apart.PositionsDigest() {
						t.Fatalf("part %d of %d has other bytes than its copy", i, len(pairs))
					}
				}
			}
		}
		for _, v := range views {
			if !bytes.Equal(encoded(v.view), v.bytes) {
				t.Fatal("a capture has changed")
			}
		}
	})
}

// A part shares the index of the undivided memory only until the part has forgotten all records from
// before the split, or has indexed them itself.
func TestPartsDropSharedIndexes(t *testing.T) {
	o, limits := New(), Limits{KeyHorizon: 10 * time.Minute, KeysMax: 1000, ProducerIdle: time.Hour, ProducersMax: 200}
	for i := range 500 {
		o.Tick(int64(i), limits)
		for _, id := range []RequestID{seq(fmt.Sprint(i), 1), keyed(fmt.Sprint(i), ""), keyed(uuidv7(minutes(5)+int64(i)), "")} {
			o.Judge(&id)
		}
	}
	part := split(o, 2)[1]
	shared := func(o *Memory) (n int) {
		for _, shared := range []bool{o.producers.shared != nil, o.keys.at.shared != nil, o.ahead.at.shared != nil, o.forgotten.last.shared != nil} {
			if shared {
				n++
			}
		}
		return n
	}
	if shared(o) != 4 || shared(part) != 4 {
		t.Errorf("%d and %d indexes are shared, want 4", shared(o), shared(part))
	}
	part.Tick(minutes(30), limits)
	again := func(i int) {
		if id := seq(fmt.Sprint(i), 2); part.Judge(&id) != Applied {
			t.Fatalf("producer %d", i)
		}
	}
	for i := 300; i < 500; i++ { // those that are still known
		again(i)
	}
	if part.producers.shared != nil {
		t.Error("the part has not indexed the producers that it knows")
	}
	for i := range 300 {
		again(i)
	}
	if shared(part) != 1 {
		t.Errorf("%d indexes are shared, want only that of forgotten producers", shared(part))
	}
	for i := range forgottenPerProducer * limits.ProducersMax {
		id := seq(fmt.Sprint("other", i), 1)
		part.Judge(&id)
	}
	if shared(part) != 0 || shared(o) != 4 {
		t.Errorf("%d and %d indexes are shared, want 0 and 4", shared(part), shared(o))
	}
}

// The test checks the rules K1 to K3 of DESIGN.md. The judges 1, 20 and 200 are names of one judge, which
// it got one after the other.
func TestKeysWhoseJudgeHasSplit(t *testing.T) {
	h, now := newHistory(t), minutes(1<<20)
	const far = int64(1) << 50
	part := func(key string, met, floor int64, judge uint32, earlier ...uint32) RequestID {
		id := keyed(key, "body")
		return judgedBy(id, met, floor, judge, earlier...)
	}
	h.want(now, part("k", far, far-10, 1), Applied, 1)
	h.want(now, part("k", far+5, far-1, 20, 1), Duplicate, 1) // the judge was restored, and accepted the key again
	h.want(now, part("k", far+5, far-1, 20), Duplicate, 1)
	h.want(now, part("k", far, far-10, 1), Full, 1)
	h.want(now, part("k", far+4, far-10, 200, 20, 1), Expired, 1)
	h.want(now, part("k", far+30, far+20, 200), Full, 1)
	h.want(now, part("k", far+30, far+20, 200, 20, 1), Applied, 2)
	h.want(now, part("k", far+5, far-1, 20, 1), Full, 2)
	h.reopen(t)
	h.want(now, part("k", far+30, far+20, 200, 20, 1), Duplicate, 2)
	h.want(now+minutes(1), part("l", far+40, far, 200), Applied, 3)
	h.want(now+minutes(5), part("m", far+1, far, 1), Applied, 4)
	h.want(now+minutes(11)+1, part("k", far, far-10, 1), Expired, 4)
	h.want(now+minutes(11)+1, part("k", far+30, far+20, 200, 20, 1), Expired, 4)
	h.want(now+minutes(11)+1, part("m", far+40, far+30, 200, 20, 1), Expired, 4) // not above dropped(200)
	h.want(now+minutes(11)+1, part("m", far+41, far+30, 200, 20, 1), Applied, 5)
}

// A part with earlier names of the judge has one encoding.
func TestNamedSection(t *testing.T) {
	id := keyed("k", "body")
	for earlier := range [][]uint32{nil, {7}, {7, 8}, {7, 8, 9}} {
		part := judgedBy(id, 5, 4, 6, []uint32{7, 8, 9}[:earlier]...)
		head := part.AppendTo(nil)
		SetUse(head, Use{Met: 50, Floor: 40})
		part.use.Met, part.use.Floor = 50, 40
		got, rest, err := ParseIdentity(part.Section(), append(head, 1, 2))
		if err != nil || !reflect.DeepEqual(got, part) || !bytes.Equal(rest, []byte{1, 2}) || (part.Section() == codec.SectionNamed) != (earlier > 0) {
			t.Errorf("%+v, %v, rest % x; want %+v", got, err, rest, part)
		}
		if _, _, err := ParseIdentity(part.Section(), head[:len(head)-1]); err == nil {
			t.Error("a section that is too short was taken")
		}
		if earlier > 0 && len(head) != 32+4+3*4+2*8 { // FORMAT.md
			t.Errorf("%d bytes", len(head))
		}
		if other := id.JudgedBy(7, Use{Met: 3, Floor: 3}); !bytes.Equal(part.AppendName(nil), other.AppendName(nil)) {
			t.Error("uses of one key have different names")
		}
	}
	head := binary.LittleEndian.AppendUint32(make([]byte, 32), 6)
	for _, earlier := range []uint32{7, 0} {
		p := append(binary.LittleEndian.AppendUint32(head[:36:36], earlier), make([]byte, 8+useSize)...)
		SetUse(p, Use{Met: 50, Floor: 40})
		if _, _, err := ParseIdentity(codec.SectionNamed, p); (err == nil) != (earlier > 0) {
			t.Errorf("a section with the earlier name %d: %v", earlier, err)
		}
	}
}

// A snapshot contains the names of a judge. Others are refused.
func TestNamesInASnapshot(t *testing.T) {
	o := New()
	o.Tick(7, testLimits)
	good := split(split(o, 2)[1], 3)[2].judging.appendTo(nil)
	if want := []byte("\x06\x05"); !bytes.HasPrefix(good, want) || len(good) != 2+3*12 {
		t.Errorf("% x", good)
	}
	for _, bad := range [][]byte{nil, good[:2], good[:14], good[:len(good)-1], append(append(good[:2:2], good[26:]...), good[2:14]...), append([]byte{6}, good[:1]...)} {
		if err := new(judging).load(bad); err == nil {
			t.Errorf("% x was taken", bad)
		}
	}
	again := judging{}
	if err := again.load(good); err != nil || !bytes.Equal(again.appendTo(nil), good) {
		t.Errorf("% x, %v", again.appendTo(nil), err)
	}
}

// If the undivided shard judged a use, the record of the use counts in a part that does not judge the
// key until an entry drops the record. That may take several entries.
func TestRecordsOfTheUndividedShardThatAreNotDroppedYet(t *testing.T) {
	o, limits := New(), testLimits
	limits.KeysMax = KeysMaxMax
	const keys, now = 2*droppedPerEntryMax + 1, 1000
	o.Tick(now, limits)
	for i := range keys {
		id := keyed(fmt.Sprint(i), "")
		o.Judge(&id)
	}
	last := keyed(fmt.Sprint(keys-1), "")
	parts := split(o, 2)
	other := parts[1-last.Shard(2)]
	repeat := last.JudgedBy(1, Use{Met: now, Floor: 0})
	for _, want := range []Outcome{Duplicate, Duplicate, Expired} {
		other.Tick(minutes(20), limits)
		if got := other.Judge(&repeat); got != want {
			t.Errorf("outcome %d, want %d", got, want)
		}
	}
	judge := parts[last.Shard(2)]
	judge.Tick(minutes(20), limits)
	if got := judge.Judge(&last); got != Applied {
		t.Errorf("outcome %d of the judge", got)
	}
}

// Two judges may have judged uses of one key: the undivided shard, which has not dropped the record of an
// expired use yet, and a shard of posts. Their times cannot be compared. A part loads a snapshot with both
// records.
func TestSnapshotOfRecordsOfTwoJudges(t *testing.T) {
	o, limits := New(), testLimits
	limits.KeysMax = KeysMaxMax
	const keys, now = 2*droppedPerEntryMax + 1, 1000
	o.Tick(now, limits)
	for i := range keys {
		id := keyed(fmt.Sprint(i), "")
		o.Judge(&id)
	}
	o.Tick(now+minutes(11), limits)
	id := keyed(fmt.Sprint(keys-1), "of another kind")
	id = id.JudgedBy(50, Use{Met: now - 1})
	if got := o.Judge(&id); got != Applied {
		t.Fatalf("outcome %d", got)
	}
	for _, part := range split(o, 2) {
		if got := copied(t, part).Judge(&id); got != Duplicate {
			t.Errorf("%s: outcome %d", part.judging.route, got)
		}
	}
}

// A repeat allocates no memory, in an undivided shard and in a part.
func TestRepeatsDoNotAllocate(t *testing.T) {
	undivided, o := New(), New()
	ids := []RequestID{seq("p", 7), keyed("k", ""), keyed(uuidv7(minutes(1<<20)+1), "")}
	for _, o := range []*Memory{undivided, o} {
		o.Tick(minutes(1<<20), testLimits)
		for i := range ids {
			o.Judge(&ids[i])
		}
	}
	for _, o := range append(split(o, 2), undivided) {
		repeat := func() {
			for i := range ids {
				id := ids[i]
				if id.IsJudged() && o.judging.foreign(&id.key) {
					id = id.JudgedBy(1, Use{Met: o.now, Floor: o.keyFloor})
				}
				if outcome := o.Judge(&id); outcome != Duplicate {
					t.Fatalf("request %d: outcome %d", i, outcome)
				}
			}
		}
		repeat() // indexes the producer
		if n := testing.AllocsPerRun(100, repeat); n > 0 {
			t.Errorf("%v allocations", n)
		}
	}
}

// BenchmarkSplit measures how long a split of a full memory blocks the state machine.
func BenchmarkSplit(b *testing.B) {
	o := fullOnce(b)
	for b.Loop() {
		split(o, 3)
		o.judging = judging{}
	}
}

// BenchmarkJudge measures repeats, which search all indexes, and new keys, in a full memory. The
// memory belongs to an undivided shard, or to a part just after the split.
func BenchmarkJudge(b *testing.B) {
	for _, divided := range []bool{false, true} {
		b.Run(fmt.Sprint("divided=", divided), func(b *testing.B) {
			o := fullOnce(b)
			if divided {
				o = split(o, 2)[1]
			}
			ids := make([]RequestID, 1<<16)
			for i := range ids {
				if ids[i] = keyed(fmt.Sprint(i*7), ""); i%2 == 0 {
					ids[i] = seq(fmt.Sprintf("0193f0a5-7c1e-7b1a-8f00-%012d", (1+forgottenPerProducer)*ProducersMaxMax-1-i), 1)
				}
			}
			n := 0
			for b.Loop() {
				o.Judge(&ids[n%len(ids)])
				n++
			}
		})
	}
}
