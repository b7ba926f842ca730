// Command respload increments counts over RESP, as redis-benchmark does. Unlike redis-benchmark, it
// can end each pipeline with WAIT 1. With -each, it increments a column of each row once. It shares
// no code with countd.
//
//	respload -addrs 127.0.0.1:6379 -conns 50 -depth 16 -rows 5000000 -for 5s -wait
//	respload -addrs 127.0.0.1:6379 -conns 4 -depth 100 -rows 10000000 -each news
//
// The second command notifies users one by one. The program prints the number of increments,
// increments per second, and the p50 and p99 of a pipeline in milliseconds.
package main

import (
	"bufio"
	"flag"
	"fmt"
	"log"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"time"
)

// variants is the number of pipelines that a connection prepares once and then sends in turn,
// because it costs more to make a pipeline than to send it.
const variants = 200

func main() {
	addrs := flag.String("addrs", "127.0.0.1:6379", "servers, with commas between; connections take turns")
	conns := flag.Int("conns", 50, "connections")
	depth := flag.Int("depth", 1, "increments of a pipeline")
	rows := flag.Int("rows", 1_000_000, "number of ids; they begin at 0")
	duration := flag.Duration("for", 5*time.Second, "how long")
	wait := flag.Bool("wait", false, "end each pipeline with WAIT 1 1000")
	each := flag.String("each", "", "increment this column of each id once, instead of likes of random ids")
	flag.Parse()
	if *conns < 1 || *depth < 1 || *rows < 1 {
		log.Fatal("-conns, -depth and -rows are 1 or more")
	}

	servers := strings.Split(*addrs, ",")
	end := time.Now().Add(*duration)
	results := make([]result, *conns)
	began := time.Now()
	var all sync.WaitGroup
	for i := range *conns {
		all.Go(func() {
			var next pipelines
			if *each != "" {
				next = ofEach(*each, *rows*i / *conns, *rows*(i+1) / *conns, *depth, *wait)
			} else {
				next = drawn(*depth, *rows, *wait, end)
			}
			var err error
			if results[i], err = run(servers[i%len(servers)], next, *wait); err != nil {
				log.Fatal(err)
			}
		})
	}
	all.Wait()
	elapsed := time.Since(began)
	n := 0
	var took []time.Duration
	for _, r := range results {
		n += r.increments
		took = append(took, r.took...)
	}
	if len(took) == 0 {
		log.Fatal("nothing was sent: -for is too short")
	}
	slices.Sort(took)
	at := func(share float64) float64 { return took[int(share*float64(len(took)-1))].Seconds() * 1000 }
	fmt.Printf("%d %.0f %.3f %.3f\n", n, float64(n)/elapsed.Seconds(), at(0.5), at(0.99))
}

// pipelines is a function that returns the next pipeline and its number of increments, or 0
// increments at the end. The bytes are valid until the next call.
type pipelines func() (pipeline []byte, increments int)

// drawn returns pipelines that increment the likes of random ids until end.
func drawn(depth, rows int, wait bool, end time.Time) pipelines {
	all := make([][]byte, variants)
	for i := range all {
		for range depth {
			all[i] = appendIncr(all[i], fmt.Sprintf("posts:%012d:like", rand.IntN(rows)))
		}
		all[i] = appendWait(all[i], wait)
	}
	i := 0
	return func() ([]byte, int) {
		if !time.Now().Before(end) {
			return nil, 0
		}
		i++
		return all[i%variants], depth
	}
}

// ofEach returns pipelines that increment a column once for each id from first to last-1.
func ofEach(column string, first, last, depth int, wait bool) pipelines {
	var b []byte
	return func() ([]byte, int) {
		n := min(depth, last-first)
		b = b[:0]
		for range n {
			b = appendIncr(b, fmt.Sprintf("unread:%012d:%s", first, column))
			first++
		}
		return appendWait(b, wait), n
	}
}

func appendIncr(b []byte, key string) []byte {
	return fmt.Appendf(b, "*2\r\n$4\r\nINCR\r\n$%d\r\n%s\r\n", len(key), key)
}

func appendWait(b []byte, wait bool) []byte {
	if !wait {
		return b
	}
	return append(b, "*3\r\n$4\r\nWAIT\r\n$1\r\n1\r\n$4\r\n1000\r\n"...)
}

// result is the result of one connection.
type result struct {
	increments int
	took       []time.Duration // each pipeline
}

// run sends each pipeline after the answer to the previous one, until next returns no more. It
// returns an error if a reply is not a number, or if the reply to WAIT is 0.
func run(addr string, next pipelines, wait bool) (r result, err error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return r, err
	}
	defer conn.Close()
	in := bufio.NewReader(conn)
	for {
		pipeline, increments := next()
		if increments == 0 {
			return r, nil
		}
		began := time.Now()
		if _, err := conn.Write(pipeline); err != nil {
			return r, err
		}
		replies := increments
		if wait {
			replies++
		}
		for n := range replies {
			line, err := in.ReadSlice('\n')
			if err != nil {
				return r, err
			}
			if line[0] != ':' || n == increments && line[1] == '0' {
				return r, fmt.Errorf("%s answered %q", addr, line)
			}
		}
		r.took = append(r.took, time.Since(began))
		r.increments += increments
	}
}
