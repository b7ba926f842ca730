package spill

import (
	"bytes"
	"math/rand/v2"
	"sync"
	"testing"
)

const testPageBytes = 4 << 10

// randomBody returns a body of n bytes whose first byte is first.
func randomBody(r *rand.Rand, first byte, n int) []byte {
	body := []byte{first}
	for len(body) < n {
		body = append(body, byte(r.Uint32()))
	}
	return body
}

// No key is lost while pages split and the directory grows, with small bodies and with bodies
// larger than a page.
func TestPagesHoldEveryKey(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	p, want := newPageTable(testPageBytes), map[uint64][]byte{}
	check := func(want map[uint64][]byte) {
		t.Helper()
		for key, body := range want {
			if got := p.get(key, 0); !bytes.Equal(got, body) {
				t.Fatalf("key %d has %d bytes, want %d", key, len(got), len(body))
			}
		}
		keys, last := 0, uint64(0)
		for _, page := range p.pages() {
			for i := range page.keys() {
				if hash := Hash(page.key(i)); keys > 0 && hash <= last {
					t.Fatalf("key %d is out of order", page.key(i))
				} else {
					last = hash
				}
				keys++
			}
		}
		if keys != len(want) || keys != int(p.keys.Load()) {
			t.Fatalf("%d keys in pages, %d counted, want %d", keys, p.keys.Load(), len(want))
		}
	}
	for i := range 3000 {
		key, n := r.Uint64N(1500), 1+r.IntN(800)
		if i%500 == 0 {
			n = 5 * testPageBytes
		}
		if r.IntN(5) == 0 {
			p.set(key, nil, 0, 0)
			delete(want, key)
			continue
		}
		want[key] = randomBody(r, 1, n)
		p.set(key, want[key], 0, 0)
	}
	check(want)
	size := 0
	for _, page := range p.pages() {
		size += page.bytes()
	}
	if counted := int(p.bytes.Load()); counted != size {
		t.Errorf("%d bytes in pages, %d counted", size, counted)
	}
	if bits := p.dir.Load().bits; bits < 4 {
		t.Errorf("a directory of %d bits shows too little", bits)
	}
	p.clear()
	check(map[uint64][]byte{})
}

// GetMany visits each key that has a body, in the order of the given keys, whatever the sizes of
// the pages. It marks no key as active.
func TestGetManyEqualsPeek(t *testing.T) {
	s := NewShard(Config{What: "body", PageBytes: 512})
	s.Show(s.New())
	b, r := s.Current(), rand.New(rand.NewPCG(5, 6))
	for _, stored := range []int{0, 1, 40, 4000} {
		for range stored {
			b.Set(r.Uint64N(6000), randomBody(r, 1, 1+r.IntN(60)), 0)
		}
		b.Set(r.Uint64N(6000), randomBody(r, 1, testPageBytes), 0)
		s.Tick(s.clock.Load() + 1)
		for _, n := range []int{0, 1, getAtOnce, 3*getAtOnce + 5} {
			keys, want, next := make([]uint64, n), make([][]byte, n), 0
			for i := range keys {
				keys[i] = r.Uint64N(6000)
				want[i] = b.Peek(keys[i])
			}
			b.GetMany(keys, func(i int, body []byte) {
				for ; next < i; next++ {
					if want[next] != nil {
						t.Fatalf("key %d was left out", keys[next])
					}
				}
				if next++; !bytes.Equal(body, want[i]) {
					t.Fatalf("key %d has %x, want %x", keys[i], body, want[i])
				}
			})
			for ; next < n; next++ {
				if want[next] != nil {
					t.Fatalf("key %d was left out", keys[next])
				}
			}
		}
		var ages Ages
		if s.Ages(&ages); ages[0] > 0 {
			t.Errorf("%d bytes look active", ages[0])
		}
	}
}

// Keys whose hashes have the same first bits do not inflate the directory.
func TestPagesOfHashesAlike(t *testing.T) {
	p := newPageTable(testPageBytes)
	body := randomBody(rand.New(rand.NewPCG(3, 3)), 1, 5*testPageBytes)
	var keys []uint64
	for key := uint64(0); len(keys) < 4; key++ {
		if Hash(key)>>46 == Hash(0)>>46 {
			keys = append(keys, key)
			p.set(key, body, 0, 0)
		}
	}
	if slots := len(p.dir.Load().slots); slots > 2*slotsFree {
		t.Errorf("%d slots for 4 keys", slots)
	}
	for _, key := range keys {
		if got := p.get(key, 0); !bytes.Equal(got, body) {
			t.Errorf("key %d has %d bytes", key, len(got))
		}
	}
}

// A reader that runs concurrently with a writer sees one of the bodies that the key has had.
func TestReadersSeeWholeBodies(t *testing.T) {
	t.Parallel()
	p := newPageTable(testPageBytes)
	bodies := make([][]byte, 50)
	for i := range bodies {
		bodies[i] = bytes.Repeat([]byte{byte(i + 1)}, 30+10*i)
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for key := uint64(0); ; key = (key + 1) % 300 {
				select {
				case <-stop:
					return
				default:
				}
				if body := p.get(key, 0); body != nil && !bytes.Equal(body, bodies[body[0]-1]) {
					t.Errorf("key %d has a torn body of %d bytes", key, len(body))
					return
				}
			}
		})
	}
	for i := range 20_000 {
		p.set(uint64(i*7%300), bodies[i%len(bodies)], 0, 0)
	}
	close(stop)
	wg.Wait()
}
