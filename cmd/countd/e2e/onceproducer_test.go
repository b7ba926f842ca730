package e2e

import (
	crand "crypto/rand"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"

	"github.com/google/uuid"
)

const (
	numbersOfVolley = 64 // the server's window: it recognises this many of a producer's latest numbers in any order
	repeatsMax      = 3
	sendersOfVolley = 6
	jumpMax         = 100 // bound on how many numbers are skipped between volleys
	brimOpsMax      = 3
)

// producer sends volleys. A volley is a full window of requests in random order, most of them
// repeated. The next volley begins when all requests are answered.
type producer struct {
	storm *storm
	name  string
	next  uint64 // number of the next request

	counted   map[cell]int64 // sums of the producer's increments
	volleys   int
	requests  int
	lastKeyed *request
}

func newProducer(s *storm) *producer {
	return &producer{storm: s, name: crand.Text(), next: 1, counted: map[cell]int64{}}
}

// run sends volleys until the storm ends, but at least volleysLeast. It returns an error if an
// answer is wrong.
func (p *producer) run() error {
	for p.volleys < volleysLeast || p.storm.storming.Err() == nil {
		if err := p.volley(); err != nil {
			return err
		}
		p.volleys++
	}
	return nil
}

// volley sends one volley from several goroutines. It returns when every copy of every request is
// answered.
func (p *producer) volley() error {
	var requests, sendings []*request
	for range numbersOfVolley {
		r := p.draw()
		requests = append(requests, r)
		for range 1 + rand.IntN(1+repeatsMax) {
			sendings = append(sendings, r)
		}
	}
	p.next += rand.Uint64N(jumpMax)
	rand.Shuffle(len(sendings), func(i, j int) { sendings[i], sendings[j] = sendings[j], sendings[i] })

	queue := make(chan *request, len(sendings))
	for _, r := range sendings {
		queue <- r
	}
	close(queue)
	var senders sync.WaitGroup
	errs := make(chan error, sendersOfVolley)
	for range sendersOfVolley {
		senders.Go(func() {
			for r := range queue {
				if err := p.storm.deliver(r); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	senders.Wait()
	close(errs)
	if err := <-errs; err != nil {
		return err
	}
	p.count(requests)
	return nil
}

// count adds the increments of the requests to p.counted, each request once.
func (p *producer) count(requests []*request) {
	p.requests += len(requests)
	for _, r := range requests {
		for _, o := range r.ops {
			for column, n := range o.Add {
				p.counted[cell{o.ID, column}] += n
			}
		}
	}
}

// draw returns a request of random ops with the next number. One request in eight has an
// idempotency key instead. In one request in eight, some or all ops overflow.
func (p *producer) draw() *request {
	var ops []op
	if rand.IntN(2) == 0 {
		ops = append(ops, p.randomOp())
	} else {
		for range 2 + rand.IntN(opsOfRequestMax) {
			ops = append(ops, p.randomOp())
		}
	}
	var brims []op
	if kind := rand.IntN(16); kind < 2 {
		if kind == 0 {
			ops = nil
		}
		for range 1 + rand.IntN(brimOpsMax) {
			brims = append(brims, op{p.storm.brims[rand.IntN(len(p.storm.brims))], map[string]int64{"like": 1 + rand.Int64N(9), "view": 1}})
		}
	}
	r := newRequest(ops, brims...)
	r.header = p.number(p.next)
	if rand.IntN(8) == 0 || p.lastKeyed == nil {
		r.header = http.Header{"Idempotency-Key": {newKey()}}
		p.lastKeyed = r
	}
	p.next++
	return r
}

// randomOp returns an increment of random sign. The sums cross zero and the bounds of 16 bits.
func (p *producer) randomOp() op {
	ids := p.storm.ids
	if rand.IntN(2) == 0 {
		ids = ids[:hotIDs]
	}
	return op{ids[rand.IntN(len(ids))], map[string]int64{"like": 1 + rand.Int64N(3), "view": rand.Int64N(40_000) - 19_000}}
}

// number returns the headers of the producer's request with the number seq.
func (p *producer) number(seq uint64) http.Header {
	return http.Header{"Countd-Producer": {p.name}, "Countd-Seq": {strconv.FormatUint(seq, 10)}}
}

// newKey returns a random key, or a UUIDv7, which contains its time.
func newKey() string {
	if rand.IntN(2) == 0 {
		return crand.Text()
	}
	return uuid.Must(uuid.NewV7()).String()
}
