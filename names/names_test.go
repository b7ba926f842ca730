package names

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/countd/countd/api/apitest"
	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/names"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/shard/errs"
)

const space = "posts@ids"

// fakeNode is a Node with one names keyspace. Its nearest replica lags if it is cut off.
type fakeNode struct {
	leader apitest.NodeNames
	lags   *apitest.NodeNames // if not nil, it answers stale reads

	mu         sync.Mutex
	ks         *shard.Keyspace
	reads      []shard.Consistency
	writes     []int // number of ops
	writeErrs  []error
	permission shard.Permission
}

func newFakeNode() *fakeNode {
	return &fakeNode{ks: &shard.Keyspace{Name: space, FirstGroup: 7, Shards: 1}}
}

func (n *fakeNode) Keyspace(name string) *shard.Keyspace {
	n.mu.Lock()
	defer n.mu.Unlock()
	if name != n.ks.Name {
		return nil
	}
	return n.ks
}

func (n *fakeNode) Read(_ *shard.Keyspace, q raftfsm.Query, ids []uint64, opt *shard.ReadOptions) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if opt.Deadline.IsZero() || len(ids) > 0 {
		return fmt.Errorf("a read of %d ids until %v", len(ids), opt.Deadline)
	}
	n.reads = append(n.reads, opt.Consistency)
	if n.lags != nil && opt.Consistency == shard.Stale {
		n.lags.Answer(space, q)
		return nil
	}
	n.leader.Answer(space, q)
	return nil
}

func (n *fakeNode) Write(_ *shard.Keyspace, w *shard.Write) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.permission = w.Permission
	n.writes = append(n.writes, w.Ops.Len())
	n.leader.Write(space, w)
	if len(n.writeErrs) > 0 {
		err := n.writeErrs[0]
		n.writeErrs = n.writeErrs[1:]
		return err
	}
	return nil
}

func soon() time.Time { return time.Now().Add(time.Minute) }

func (n *Names) mustAssign(t *testing.T, texts ...string) []uint64 {
	t.Helper()
	numbers := make([]uint64, len(texts))
	must.Do(t, n.Assign(space, texts, numbers, &shard.Write{Deadline: soon()}))
	return numbers
}

func (n *Names) mustFind(t *testing.T, opt shard.ReadOptions, texts ...string) []uint64 {
	t.Helper()
	numbers := make([]uint64, len(texts))
	opt.Deadline = soon()
	must.Do(t, n.Find(space, texts, numbers, &opt))
	return numbers
}

func wantNumbers(t *testing.T, what string, got []uint64, want ...uint64) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: %d, want %d", what, got, want)
	}
}

// A request that names a new text several times gives it one number, by one write. Known texts are
// written no more, and a node that has read them reads them no more.
func TestAssign(t *testing.T) {
	node := newFakeNode()
	n := New(node)
	wantNumbers(t, "new", n.mustAssign(t, "a", "b", "a", "c"), 1, 2, 1, 3)
	wantNumbers(t, "more", n.mustAssign(t, "d", "b"), 4, 2)
	wantNumbers(t, "another node", New(node).mustAssign(t, "d", "c", "e"), 4, 3, 5)
	if !slices.Equal(node.writes, []int{3, 1, 1}) {
		t.Errorf("writes of %d texts", node.writes)
	}
	reads := len(node.reads)
	wantNumbers(t, "known", n.mustAssign(t, "d", "a"), 4, 1)
	wantNumbers(t, "known", n.mustFind(t, shard.ReadOptions{Consistency: shard.Linearizable}, "b", "c"), 2, 3)
	number, ok := n.Cached(space, []byte("d"))
	if len(node.reads) != reads || number != 4 || !ok {
		t.Errorf("%d reads of what was known, number %d %v", len(node.reads)-reads, number, ok)
	}
}

// A large request is written in parts of assignsMax texts.
func TestAssignOfManyTexts(t *testing.T) {
	node := newFakeNode()
	texts, want := make([]string, 2*assignsMax+3), make([]uint64, 2*assignsMax+3)
	for i := range texts {
		texts[i], want[i] = fmt.Sprint(i), uint64(i+1)
	}
	wantNumbers(t, "many", New(node).mustAssign(t, texts...), want...)
	if !slices.Equal(node.writes, []int{assignsMax, assignsMax, 3}) {
		t.Errorf("writes of %d texts", node.writes)
	}
}

// A read assigns nothing. It asks the leader only if it must see every acknowledged write, and only
// for texts that the nearest replica does not know.
func TestFind(t *testing.T) {
	node := newFakeNode()
	New(node).mustAssign(t, "a", "b")
	node.lags = &apitest.NodeNames{}
	node.lags.Write(space, &shard.Write{Ops: names.Ops{{Kind: names.Assign, Text: "a"}}, Width: 1, Rows: make([]int64, 1)})
	token := shard.Token{At: []shard.GroupIndex{{Group: 1, Index: 9}}}
	for _, test := range []struct {
		opt   shard.ReadOptions
		texts []string
		want  []uint64
		reads []shard.Consistency
	}{
		{shard.ReadOptions{Consistency: shard.Stale}, []string{"b", "a"}, []uint64{0, 1}, []shard.Consistency{shard.Stale}},
		{shard.ReadOptions{Consistency: shard.Stale, Token: token}, []string{"b", "a"}, []uint64{2, 1}, []shard.Consistency{shard.Stale, shard.Linearizable}},
		{shard.ReadOptions{Consistency: shard.Linearizable}, []string{"b", "x"}, []uint64{2, 0}, []shard.Consistency{shard.Stale, shard.Linearizable}},
		{shard.ReadOptions{Consistency: shard.Linearizable}, []string{"a"}, []uint64{1}, []shard.Consistency{shard.Stale}},
		{shard.ReadOptions{Consistency: shard.Bounded}, []string{"a"}, []uint64{1}, []shard.Consistency{shard.Bounded}},
	} {
		node.reads = nil
		wantNumbers(t, fmt.Sprint(test.opt), New(node).mustFind(t, test.opt, test.texts...), test.want...)
		if !slices.Equal(node.reads, test.reads) {
			t.Errorf("%+v %s: reads %v, want %v", test.opt, test.texts, node.reads, test.reads)
		}
	}
	if n := node.leader.Assigned(); n != 2 {
		t.Errorf("%d texts have numbers", n)
	}
}

// Texts asks the leader only for a number that the nearest replica has not given yet. A number whose
// text was erased has no text.
func TestTexts(t *testing.T) {
	node := newFakeNode()
	New(node).mustAssign(t, "a", "b", "c")
	erase := &shard.Write{Ops: names.Ops{{Kind: names.Erase, Text: "b"}}, Width: 1, Rows: make([]int64, 1)}
	node.leader.Write(space, erase)
	node.lags = &apitest.NodeNames{}
	node.lags.Write(space, &shard.Write{Ops: names.Ops{{Kind: names.Assign, Text: "a"}, {Kind: names.Assign, Text: "b"}}, Width: 1, Rows: make([]int64, 2)})
	node.lags.Write(space, erase)
	for _, test := range []struct {
		numbers []uint64
		want    []string
		reads   int
	}{
		{[]uint64{1, 2}, []string{"a", ""}, 1},
		{[]uint64{3, 1}, []string{"c", "a"}, 2},
		{[]uint64{4, 0}, []string{"", ""}, 2},
	} {
		node.reads = nil
		n, got := New(node), make([]string, len(test.numbers))
		must.Do(t, n.Texts(space, test.numbers, got, &shard.ReadOptions{Consistency: shard.Stale, Deadline: soon()}))
		if !slices.Equal(got, test.want) || len(node.reads) != test.reads {
			t.Errorf("%d: %q by %d reads, want %q by %d", test.numbers, got, len(node.reads), test.want, test.reads)
		}
		if test.numbers[0] == 3 {
			node.reads = nil
			must.Do(t, n.Texts(space, test.numbers, got, &shard.ReadOptions{Deadline: soon()}))
			if !slices.Equal(got, test.want) || node.reads != nil {
				t.Errorf("again: %q by reads %v", got, node.reads)
			}
		}
	}
}

// A text that was erased is unknown at once at this node. If it comes back, it has a new number.
func TestErase(t *testing.T) {
	node := newFakeNode()
	n := New(node)
	n.mustAssign(t, "a", "b")
	number, err := n.Erase(space, "a", &shard.Write{Deadline: soon()})
	must.Do(t, err)
	wantNumbers(t, "erased", append(n.mustFind(t, shard.ReadOptions{}, "a", "b"), number), 0, 2, 1)
	wantNumbers(t, "back", n.mustAssign(t, "a"), 3)
	number, err = n.Erase(space, "none", &shard.Write{Deadline: soon()})
	must.Do(t, err)
	wantNumbers(t, "unknown", []uint64{number}, 0)
}

// A write whose outcome is unknown is repeated, and the text gets one number. An error never says that
// the request itself might have been applied, or which of the new texts failed.
func TestAssignFails(t *testing.T) {
	node := newFakeNode()
	node.writeErrs = []error{errs.ErrOutcomeUnknown, errs.ErrOutcomeUnknown}
	wantNumbers(t, "repeated", New(node).mustAssign(t, "a"), 1)
	if len(node.writes) != 3 {
		t.Errorf("%d writes", len(node.writes))
	}
	for _, test := range []struct{ err, want, not error }{
		{errs.ErrOutcomeUnknown, errs.ErrNoLeader, errs.ErrOutcomeUnknown},
		{errs.ErrOverloaded, errs.ErrOverloaded, nil},
		{&shard.NewRowError{Op: 3}, errs.ErrMemoryFull, nil},
	} {
		node.writeErrs = []error{test.err}
		numbers := make([]uint64, 1)
		err := New(node).Assign(space, []string{"new"}, numbers, &shard.Write{Deadline: time.Now().Add(-time.Second)})
		if !errors.Is(err, test.want) || test.not != nil && errors.Is(err, test.not) {
			t.Errorf("%v: %v", test.err, err)
		}
		if _, is := errors.AsType[*shard.NewRowError](err); is {
			t.Errorf("%v: %v names an op", test.err, err)
		}
		node.leader = apitest.NodeNames{}
	}
	var argument *errs.ArgumentError
	for _, text := range []string{"", "\xff", strings.Repeat("x", BytesMax+1)} {
		if err := New(node).Assign(space, []string{text}, make([]uint64, 1), &shard.Write{Deadline: soon()}); !errors.As(err, &argument) {
			t.Errorf("text %q: %v", text, err)
		}
		if _, err := New(node).Erase(space, text, &shard.Write{Deadline: soon()}); !errors.As(err, &argument) {
			t.Errorf("text %q erased: %v", text, err)
		}
	}
	if err := New(node).Find("gone@ids", []string{"a"}, make([]uint64, 1), &shard.ReadOptions{Deadline: soon()}); !errors.Is(err, errs.ErrUnknownKeyspace) {
		t.Errorf("a keyspace that does not exist: %v", err)
	}
}

// A pair is used for pairAgeMax, and never for another keyspace of the same name.
func TestCacheForgets(t *testing.T) {
	node := newFakeNode()
	n, now := New(node), time.Unix(1_000_000, 0)
	n.cache.now = func() time.Time { return now }
	n.mustAssign(t, "a")
	cached := func() bool {
		texts := make([]string, 1)
		number, ok := n.Cached(space, []byte("a"))
		if byText := len(n.cache.numbers(node.ks.FirstGroup, []string{"a"}, make([]uint64, 1))) == 0; byText != ok || ok != (number == 1) && ok {
			t.Errorf("Cached says %d %v, numbers %v", number, ok, byText)
		}
		if byNumber := len(n.cache.texts(node.ks.FirstGroup, []uint64{1}, texts)) == 0; byNumber != ok {
			t.Errorf("Cached says %v, texts %v", ok, byNumber)
		}
		return ok
	}
	if now = now.Add(pairAgeMax); !cached() {
		t.Error("forgotten too early")
	}
	if now = now.Add(time.Second); cached() {
		t.Error("remembered too long")
	}
	n.mustFind(t, shard.ReadOptions{}, "a")
	if !cached() {
		t.Error("not remembered")
	}
	node.ks = &shard.Keyspace{Name: space, FirstGroup: 8}
	if cached() {
		t.Error("remembered for a later keyspace")
	}
}

// A text that was erased and came back has its new number, and the old number has no text.
func TestCacheOfErased(t *testing.T) {
	var c cache
	c.now = time.Now
	c.keep(7, []string{"a"}, []uint64{1})
	c.keep(7, []string{"a"}, []uint64{2})
	texts := make([]string, 2)
	if unknown := c.texts(7, []uint64{1, 2}, texts); !slices.Equal(texts, []string{"", "a"}) || !slices.Equal(unknown, []int{0}) {
		t.Errorf("%q, unknown %d", texts, unknown)
	}
}

// The cache is bounded, keeps what was read last, and answers each pair right.
func TestCacheIsBounded(t *testing.T) {
	c := cache{now: time.Now}
	group := func(i uint64) uint32 { return uint32(i % 2) }
	const pairs = 3 * placesMax
	for i := range uint64(pairs) {
		c.keep(group(i), []string{fmt.Sprint(i)}, []uint64{i + 1})
	}
	byText, byNumber := 0, 0
	for i := range uint64(pairs) {
		if number, ok := c.number(group(i), fmt.Append(nil, i), c.since()); ok {
			if byText++; number != i+1 {
				t.Fatalf("the number of %d is %d", i, number)
			}
		}
		text := make([]string, 1)
		if unknown := c.texts(group(i), []uint64{i + 1}, text); len(unknown) == 0 {
			if byNumber++; text[0] != fmt.Sprint(i) {
				t.Fatalf("the text of %d is %q", i+1, text[0])
			}
		} else if i == pairs-1 {
			t.Error("the last pair is gone")
		}
	}
	for _, held := range []int{byText, byNumber} {
		if held < placesMax*9/10 || held > placesMax {
			t.Errorf("%d pairs by text, %d by number, of %d places", byText, byNumber, placesMax)
		}
	}
}

func TestCachedAllocatesNothing(t *testing.T) {
	n := New(newFakeNode())
	n.mustAssign(t, "a")
	text := []byte("a")
	if allocs := testing.AllocsPerRun(100, func() { n.Cached(space, text) }); allocs > 0 {
		t.Errorf("%v allocations", allocs)
	}
}

func TestValid(t *testing.T) {
	for text, want := range map[string]bool{
		"": false, "a": true, "\x00": true, "über:x/ y": true, "\xff": false, "a\xc3": false,
		strings.Repeat("x", BytesMax): true, strings.Repeat("x", BytesMax+1): false,
	} {
		if Valid([]byte(text)) != want {
			t.Errorf("%q", text)
		}
	}
}

// A keyspace is dropped and made anew between two decodes of a request: the request gets no number of the old one.
func TestSlotsOfARemadeKeyspace(t *testing.T) {
	for name, remadeBefore := range map[string]bool{"before the look-up": true, "after the look-up": false} {
		t.Run(name, func(t *testing.T) {
			node := newFakeNode()
			n := New(node)
			n.mustAssign(t, "other", "a") // a is in the cache
			s := Slots{Names: n}
			decode := func() {
				for i, text := range []string{"a", "b"} {
					if _, problem := s.Parse(space, i, []byte(text)); problem != "" {
						t.Fatal(problem)
					}
				}
			}
			decode()
			remake := func() {
				node.mu.Lock()
				defer node.mu.Unlock()
				node.ks = &shard.Keyspace{Name: space, FirstGroup: 8, Shards: 1}
			}
			if remadeBefore {
				remake()
			}
			err := s.Assign(&shard.Write{Deadline: soon()})
			if !remadeBefore && err == nil {
				remake()
				if decode(); s.Complete() {
					t.Error("complete")
				}
				err = s.Assign(&shard.Write{Deadline: soon()})
			}
			if !errors.Is(err, errs.ErrUnknownKeyspace) {
				t.Errorf("looked up: %v", err)
			}
		})
	}
}
