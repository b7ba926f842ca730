package dedup

import (
	"bytes"
	"fmt"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

func TestProducerWindow(t *testing.T) {
	h := newHistory(t)
	h.want(0, seq("p", 100), Applied, 1)
	h.want(0, seq("p", 100), Duplicate, 1)
	h.want(0, seq("p", 37), Applied, 2) // the lowest number in the window
	h.want(0, seq("p", 37), Duplicate, 2)
	h.want(0, seq("p", 36), Expired, 2)
	h.want(0, seq("p", 163), Applied, 3)
	h.want(0, seq("p", 100), Duplicate, 3)
	h.want(0, seq("p", 99), Expired, 3)
	h.want(0, seq("p", 101), Applied, 4)
	h.want(0, seq("p", 1<<63), Applied, 5)
	h.want(0, seq("p", 163), Expired, 5)
	h.want(0, seq("q", 163), Applied, 6) // another producer
}

func TestProducerExpiresByLogTime(t *testing.T) {
	h := newHistory(t)
	h.want(minutes(1), seq("p", 1), Applied, 1)
	h.want(minutes(60), seq("p", 1), Duplicate, 1) // in use again
	h.want(minutes(119), seq("p", 2), Applied, 2)
	h.want(minutes(180), seq("q", 1), Applied, 3)
	h.want(minutes(180), seq("p", 2), Expired, 3)
	if h.m.producers.len != 1 || h.m.forgotten.order.len() != 1 {
		t.Errorf("%d producers, %d gone", h.m.producers.len, h.m.forgotten.order.len())
	}
	h.want(minutes(2), seq("q", 2), Applied, 4) // a leader whose clock is behind
	if h.m.now != minutes(180) {
		t.Errorf("log time went back to %d", h.m.now)
	}
}

// A forgotten producer can continue with its next number. The group applies no old number of the
// producer again, even if the number is in the new window, if the group forgot the producer twice,
// or after a restore of a snapshot.
func TestForgottenProducerGoesOn(t *testing.T) {
	h := newHistory(t)
	h.want(minutes(0), seq("p", 5), Applied, 1)
	h.want(minutes(0), seq("p", 7), Applied, 2)
	h.want(minutes(61), seq("p", 7), Expired, 2)
	h.want(minutes(61), seq("p", 6), Expired, 2) // 6 was never applied, but the record does not show that
	h.want(minutes(61), seq("p", 10), Applied, 3)
	h.reopen(t)
	h.want(minutes(61), seq("p", 10), Duplicate, 3)
	h.want(minutes(61), seq("p", 9), Applied, 4)
	h.want(minutes(61), seq("p", 8), Applied, 5)
	h.want(minutes(61), seq("p", 7), Expired, 5)
	h.want(minutes(61), seq("p", 6), Expired, 5)
	h.want(minutes(130), seq("p", 10), Expired, 5)
	h.reopen(t)
	h.want(minutes(130), seq("p", 8), Expired, 5)
	h.want(minutes(130), seq("p", 11), Applied, 6)
	h.want(minutes(130), seq("p", 10), Expired, 6)
}

// If two forgotten producers have the same hash, high is the higher of their numbers.
func TestGoneProducersOfOneHash(t *testing.T) {
	g := newForgottenProducers()
	for i, high := range []uint64{100, 5, 200} {
		g.add(forgottenProducer{7, high})
		if got, known := g.high(7); !known || got != []uint64{100, 100, 200}[i] {
			t.Errorf("after %d: %d %v", high, got, known)
		}
	}
	for _, want := range []bool{true, true, false} {
		g.drop()
		if _, known := g.high(7); known != want {
			t.Errorf("with %d left: known %v", g.order.len(), known)
		}
	}
}

func TestProducersAreBounded(t *testing.T) {
	h := newHistory(t)
	for i := range int64(1000) {
		h.want(i, seq(fmt.Sprint("p", i), 1), Applied, i+1)
	}
	if h.m.producers.len != testLimits.ProducersMax || h.m.forgotten.order.len() != forgottenPerProducer*testLimits.ProducersMax {
		t.Errorf("%d producers, %d gone", h.m.producers.len, h.m.forgotten.order.len())
	}
	h.want(1000, seq("p994", 1), Expired, 1000)
	h.want(1000, seq("p955", 1), Expired, 1000) // the oldest producer whose hash is still remembered
	h.want(1000, seq("p954", 1), Applied, 1001)
	h.want(1000, seq("p999", 1), Duplicate, 1001)
}

// The type producers, with several pages, behaves like a list in order of last use. A capture never
// changes.
func TestProducersAgainstModel(t *testing.T) {
	type captured struct {
		producers
		want []string
	}
	check := func(t *rapid.T, s *producers, want []string) {
		got := []string{}
		for p := range s.all() {
			got = append(got, fmt.Sprint(p.name, p.used))
		}
		if fmt.Sprint(got) != fmt.Sprint(want) || s.len != len(want) {
			t.Fatalf("%d of %v, want %v", s.len, got, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		s, now, next := newProducers(), int64(0), 0
		names, model := []string{}, []string{} // both in order of last use; model also has the times
		var views []captured
		for _, step := range rapid.SliceOfN(rapid.IntRange(0, 9), 1, 60).Draw(t, "steps") {
			for range 1 + 10*step {
				now++
				switch at := int(now*7919) % max(len(names), 1); {
				case step < 6 || len(names) == 0:
					name := fmt.Sprint("p", next, "/")
					next++
					s.add(producer{name: name, used: now})
					names, model = append(names, name), append(model, fmt.Sprint(name, now))
				case step < 8:
					name := names[at]
					s.touch(s.slot[name], now)
					names = append(append(names[:at:at], names[at+1:]...), name)
					model = append(append(model[:at:at], model[at+1:]...), fmt.Sprint(name, now))
				default:
					s.remove(s.slot[names[at]])
					names = append(names[:at:at], names[at+1:]...)
					model = append(model[:at:at], model[at+1:]...)
				}
			}
			check(t, &s, model)
			if step%3 == 0 {
				views = append(views, captured{s.capture(), model[:len(model):len(model)]})
			}
		}
		for _, v := range views {
			check(t, &v.producers, v.want)
		}
	})
}

// A captured memory that is encoded while requests are judged has the bytes of the moment of the
// capture.
func TestCaptureIsOfItsMoment(t *testing.T) {
	o, l := New(), testLimits
	l.KeysMax, l.ProducersMax = 3*fifoBlockLen, 3*producerPageLen
	judge := func(from, to int) {
		for i := from; i < to; i++ {
			o.Tick(minutes(int64(i)/100), l)
			for _, id := range []RequestID{
				seq(fmt.Sprint(i%1000), uint64(i)), seq(fmt.Sprint(i/2%50), uint64(i)),
				keyed(fmt.Sprint(i), ""), keyed(uuidv7(o.now+minutes(5)+int64(i)), ""),
			} {
				if o.Judge(&id) == Applied && i%3 == 0 {
					o.SetRepeat(&id, []Outcome{Refused, PartlyRefused}[i%2])
				}
			}
		}
	}
	judge(0, 2000)
	for round := range 5 {
		v := o.Capture()
		encode := func() []byte { return v.appendKeys(v.appendForgotten(v.appendProducers(nil)), 0) }
		want := encode()
		var wg sync.WaitGroup
		wg.Go(func() {
			for range 5 {
				if !bytes.Equal(encode(), want) {
					t.Errorf("round %d: other bytes", round)
				}
			}
		})
		judge((round+4)*500, (round+5)*500)
		wg.Wait()
	}
	if o.producers.len == 0 || o.forgotten.order.len() == 0 || o.keys.records.len() == 0 || o.ahead.records.len() == 0 {
		t.Error("a list is empty: this shows too little")
	}
}

// After limits were lowered, several entries drop the records above them.
func TestLoweredLimitsAreReachedByAndBy(t *testing.T) {
	o, l := New(), testLimits
	const n = 2*droppedPerEntryMax + 100
	l.ProducersMax = n
	o.Tick(0, l)
	for i := range 3 * n {
		id := seq(fmt.Sprint(i), 1)
		o.Judge(&id)
	}
	l.ProducersMax = 1
	producers, gone := o.producers.len, o.forgotten.order.len()
	if producers != n || gone != 2*n {
		t.Fatalf("%d producers, %d gone", producers, gone)
	}
	for entry := 0; o.producers.len > 1 || o.forgotten.order.len() > forgottenPerProducer; entry++ {
		o.Tick(0, l)
		for i := range 10 { // new producers arrive meanwhile
			id := seq(fmt.Sprint("entry ", entry, " ", i), 1)
			o.Judge(&id)
		}
		if less := producers - o.producers.len; less > droppedPerEntryMax || less < 0 || entry > 10 {
			t.Fatalf("entry %d: %d producers less", entry, less)
		}
		if less := gone - o.forgotten.order.len(); less > droppedPerEntryMax || entry > 10 {
			t.Fatalf("entry %d: %d gone less", entry, less)
		}
		producers, gone = o.producers.len, o.forgotten.order.len()
	}
}
