package replica

import (
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/shard/storage"
)

func TestLogCache(t *testing.T) { eachStore(t, testLogCache) }

func testLogCache(t *testing.T, kind storage.LogStore) {
	under := storage.NewLog(mustOpenStores(t, kind, t.TempDir()), 7, "log", 1<<40, noFatal(t))
	c := newLogCache(under)
	want := map[uint64]string{}
	store := func(first, n uint64, data string) {
		t.Helper()
		var batch []*raft.Log
		for i := first; i < first+n; i++ {
			batch = append(batch, testEntry(i, fmt.Sprint(data, i)))
			want[i] = fmt.Sprint(data, i)
		}
		if err := c.StoreLogs(batch); err != nil {
			t.Fatal(err)
		}
	}
	remove := func(first, last uint64) {
		t.Helper()
		if err := c.DeleteRange(first, last); err != nil {
			t.Fatal(err)
		}
		for i := first; i <= last; i++ {
			delete(want, i)
		}
	}
	check := func(what string) {
		t.Helper()
		bytes := 0
		for i := c.mu.first; i < c.mu.next; i++ {
			bytes += storage.EntryBytes(&c.mu.ring[i%logCacheEntriesMax])
		}
		if bytes != c.mu.bytes || bytes > logCacheBytesMax {
			t.Fatalf("%s: %d bytes cached, counted %d", what, bytes, c.mu.bytes)
		}
		for i := uint64(1); i < 3000; i++ {
			var e raft.Log
			err := c.GetLog(i, &e)
			data, stored := want[i]
			if stored != (err == nil) || string(e.Data) != data {
				t.Fatalf("%s: entry %d is %.20q, %v; want %.20q", what, i, e.Data, err, data)
			}
		}
	}
	store(1, 100, "a")
	check("some")
	store(101, 1000, "b")
	check("more than fit")
	remove(1, 700)
	check("compacted below and into the cache")
	remove(1090, 1100)
	check("suffix cut")
	store(1090, 20, "c")
	check("suffix written again")
	remove(701, 1109)
	store(2000, 3, "d")
	check("begun anew after a snapshot")
	store(2003, 30, string(make([]byte, 400<<10)))
	check("large entries")
	if c.mu.next-c.mu.first > 11 {
		t.Errorf("%d large entries cached", c.mu.next-c.mu.first)
	}
	store(2033, 1, string(make([]byte, 5<<20)))
	check("an entry larger than the cache")
}

// The timer of a closed log does not keep the log in memory, nor the log's replica.
func TestLogCacheIsFreed(t *testing.T) {
	t.Parallel()
	c := newLogCache(raft.NewInmemStore())
	mustDo(t, c.StoreLog(testEntry(1, "data")))
	held := weak.Make(c)
	runtime.GC()
	if held.Value() != nil {
		t.Error("the cache is in memory although nobody uses it")
	}
}

// An idle log keeps its newest entry in memory if that is small, and reads the others from
// the store again.
func TestLogCacheAges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		under := raft.NewInmemStore()
		c := newLogCache(under)
		held := func() uint64 {
			c.mu.RLock()
			defer c.mu.RUnlock()
			return c.mu.next - c.mu.first
		}
		for i := range uint64(30) { // one entry a second
			mustDo(t, c.StoreLog(testEntry(i+1, "data")))
			time.Sleep(time.Second)
			if n := held(); n == 0 || n > 20 {
				t.Fatalf("after %d entries, one a second, %d are held", i+1, n)
			}
		}
		time.Sleep(2*logCacheAge + time.Second)
		if n := held(); n != 1 {
			t.Errorf("a log that rests holds %d entries, want the newest", n)
		}
		mustDo(t, under.DeleteRange(1, 30)) // from here on, only entries in memory can be read
		var e raft.Log
		if err := c.GetLog(30, &e); err != nil || string(e.Data) != "data" {
			t.Errorf("%q, %v", e.Data, err)
		}
		if err := c.GetLog(29, &e); err == nil {
			t.Error("the entry before the newest is in memory still")
		}
		mustDo(t, c.StoreLog(testEntry(31, string(make([]byte, logCacheNewestMax)))))
		if n := held(); n != 2 {
			t.Errorf("%d entries are held, want the newest two", n)
		}
		time.Sleep(2*logCacheAge + time.Second)
		if n := held(); n != 0 || c.mu.bytes != 0 {
			t.Errorf("behind a large entry a log that rests holds %d entries, %d bytes", n, c.mu.bytes)
		}
		time.Sleep(3 * logCacheAge) // until the cache's last timer has fired
	})
}
