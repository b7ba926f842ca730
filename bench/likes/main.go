// Command likes adds likes of users to posts, in countd over HTTP or in Redis. It also reads
// pages of posts, with or without the likes of a user. It shares no code with countd.
//
//	likes -do like -addr 127.0.0.1:7400 -conns 64 -for 5s
//	likes -do like -addr 127.0.0.1:7400 -conns 16 -batch 100 -n 5000000 -posts 500000 -recent
//	likes -do page -addr 127.0.0.1:7400 -conns 64 -for 5s      20 posts; check: with the user's likes
//	likes -do sadd -addr 127.0.0.1:7403 -conns 64 -for 5s      the same as like, at countd's Redis port
//	likes -do redis -addr 127.0.0.1:6379 -conns 64 -for 5s     SADD, SCARD and the reverse SADD in MULTI
//
// At the end it prints the number of ops, how many of them changed a set, requests per second, and
// the p50 and p99 of a request in milliseconds. With page and check, an op is a page.
package main

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// load configures a run and counts its ops.
type load struct {
	do, addr string
	batch    int
	posts    int
	users    uint64
	recent   bool
	n        int64 // number of ops; 0 for no limit
	end      time.Time
	taken    atomic.Int64
}

func main() {
	var l load
	flag.StringVar(&l.do, "do", "like", "incr, like, page, check, sadd or redis")
	flag.StringVar(&l.addr, "addr", "127.0.0.1:7400", "server")
	conns := flag.Int("conns", 64, "connections, each with one request in flight")
	flag.IntVar(&l.batch, "batch", 1, "ops of a request of incr and like")
	flag.IntVar(&l.posts, "posts", 1_000_000, "posts, with ids like Weibo's, which grow with time")
	flag.Uint64Var(&l.users, "users", 10_000_000, "users are 1 to this; some are much more active than others")
	flag.BoolVar(&l.recent, "recent", false, "prefer new posts, and give half of the ops to one post in 1,000; by default all posts are alike")
	flag.Int64Var(&l.n, "n", 0, "ops in all; 0 for until -for")
	duration := flag.Duration("for", 5*time.Second, "how long without -n")
	flag.Parse()
	began := time.Now()
	l.end = began.Add(*duration)
	results := make([]result, *conns)
	var all sync.WaitGroup
	for i := range results {
		all.Go(func() {
			var err error
			if results[i], err = l.run(uint64(i)); err != nil {
				log.Fatal(err)
			}
		})
	}
	all.Wait()
	elapsed := time.Since(began).Seconds()
	var sum result
	for _, r := range results {
		sum.ops += r.ops
		sum.changed += r.changed
		sum.took = append(sum.took, r.took...)
	}
	if len(sum.took) == 0 {
		log.Fatal("nothing was sent")
	}
	slices.Sort(sum.took)
	at := func(share float64) float64 { return sum.took[int(share*float64(len(sum.took)-1))].Seconds() * 1000 }
	fmt.Printf("%d %d %.0f %.3f %.3f\n", sum.ops, sum.changed, float64(len(sum.took))/elapsed, at(0.5), at(0.99))
}

// result is the result of one connection.
type result struct {
	ops, changed int64
	took         []time.Duration
}

// caller is one connection.
type caller struct {
	*load
	random *rand.Rand
	zipf   *rand.Zipf
	conn   net.Conn
	in     *bufio.Reader
	lines  *textproto.Reader
	body   []byte
	out    []byte
}

func (l *load) run(number uint64) (r result, err error) {
	random := rand.New(rand.NewPCG(number, uint64(time.Now().UnixNano())))
	c := caller{load: l, random: random, zipf: rand.NewZipf(random, 1.1, 20, l.users-1)}
	if c.conn, err = net.Dial("tcp", l.addr); err != nil {
		return r, err
	}
	defer c.conn.Close()
	c.in = bufio.NewReaderSize(c.conn, 64<<10)
	c.lines = textproto.NewReader(c.in)
	for {
		n := int64(l.batch)
		done := l.taken.Add(n)
		if l.n > 0 && done > l.n || l.n == 0 && !time.Now().Before(l.end) {
			return r, nil
		}
		c.prepare(done)
		began := time.Now()
		if _, err = c.conn.Write(c.out); err != nil {
			return r, err
		}
		changed, err := c.answer()
		if err != nil {
			return r, err
		}
		r.took = append(r.took, time.Since(began))
		r.ops += n
		r.changed += int64(changed)
	}
}

// prepare makes the next request. total is the number of ops that all connections have made,
// including those of this request.
func (c *caller) prepare(total int64) {
	path := "/v1/counters/posts/get"
	switch b := c.body[:0]; c.do {
	case "sadd":
		c.out = command(c.out[:0], "SADD", "posts:"+c.post(total)+":like:members", c.user())
		return
	case "redis":
		post, user := c.post(total), c.user()
		c.out = command(c.out[:0], "MULTI")
		c.out = command(c.out, "SADD", "p:"+post, user)
		c.out = command(c.out, "SCARD", "p:"+post)
		c.out = command(c.out, "SADD", "u:"+user, post)
		c.out = command(c.out, "EXEC")
		return
	case "incr", "like":
		path = "/v1/counters/posts/incr"
		if c.do == "like" {
			path = "/v1/members/posts/like"
		}
		b = append(b, `{"ops":[`...)
		for i := range c.batch {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(append(append(b, `{"id":"`...), c.post(total)...), '"')
			if c.do == "like" {
				b = append(append(append(b, `,"member":"`...), c.user()...), `","set":true}`...)
			} else {
				b = append(b, `,"add":{"like":1}}`...)
			}
		}
		c.body = append(b, `]}`...)
	default:
		b = append(b, `{"columns":["like"],"ids":[`...)
		for i := range 20 {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(append(append(b, '"'), c.post(int64(c.posts)<<32)...), '"')
		}
		b = append(b, ']')
		if c.do == "check" {
			b = append(append(append(b, `,"member":"`...), c.user()...), '"')
		}
		c.body = append(b, '}')
	}
	c.out = fmt.Appendf(c.out[:0], "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", path, c.addr, len(c.body))
	c.out = append(c.out, c.body...)
}

// post returns the id of a random post.
func (c *caller) post(done int64) string {
	at := c.random.IntN(c.posts)
	if c.recent {
		there := c.posts
		if c.n > 0 {
			there = max(1, int(min(done, c.n)*int64(c.posts)/c.n))
		}
		at = max(there-1-int(c.random.ExpFloat64()*float64(c.posts)/30), 0)
		if c.random.IntN(2) == 0 {
			at -= at % 1000
		}
	}
	low := uint64(at) * 0x9e3779b97f4a7c15 >> 42
	return strconv.FormatUint(uint64(1_100_000_000+at)<<22|low, 10)
}

func (c *caller) user() string {
	return strconv.FormatUint(c.zipf.Uint64()*2_654_435_761%c.users+1, 10)
}

func command(to []byte, words ...string) []byte {
	to = fmt.Appendf(to, "*%d\r\n", len(words))
	for _, word := range words {
		to = fmt.Appendf(to, "$%d\r\n%s\r\n", len(word), word)
	}
	return to
}

// replies returns how many lines Redis answers to a request, or 0 over HTTP. It also returns the
// index of the line that answers the SADD to a post's set.
func (c *caller) replies() (lines, added int) {
	switch c.do {
	case "sadd":
		return 1, 0
	case "redis":
		return 8, 5 // OK, QUEUED three times, and an array of three numbers
	default:
		return 0, 0
	}
}

// answer reads the answer to the last request. It returns how many of the request's ops changed a
// set.
func (c *caller) answer() (changed int, err error) {
	if lines, added := c.replies(); lines > 0 {
		for i := range lines {
			line, err := c.lines.ReadLine()
			if err != nil {
				return 0, err
			}
			if strings.HasPrefix(line, "-") {
				return 0, fmt.Errorf("%s answered %s", c.addr, line)
			}
			if i == added && line == ":1" {
				changed++
			}
		}
		return changed, nil
	}
	status, err := c.lines.ReadLine()
	if err != nil {
		return 0, err
	}
	size := 0
	for {
		line, err := c.lines.ReadLine()
		if err != nil {
			return 0, err
		}
		if line == "" {
			break
		}
		if name, value, _ := strings.Cut(line, ": "); strings.EqualFold(name, "Content-Length") {
			if size, err = strconv.Atoi(value); err != nil {
				return 0, err
			}
		}
	}
	c.body = slices.Grow(c.body[:0], size)[:size]
	if _, err := io.ReadFull(c.in, c.body); err != nil {
		return 0, err
	}
	if !strings.Contains(status, " 200 ") {
		return 0, fmt.Errorf("%s answered %s: %s", c.addr, status, c.body)
	}
	return bytes.Count(c.body, []byte(`"changed":true`)), nil
}
