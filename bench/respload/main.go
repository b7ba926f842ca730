// Command respload increments random counts over RESP, as redis-benchmark does,
// and can end each pipeline with WAIT 1, which that cannot. It shares nothing with
// countd: what it measures is on the other side of a socket.
//
//	respload -addrs 127.0.0.1:6379 -conns 50 -depth 16 -rows 5000000 -for 5s -wait
//
// It prints increments, increments a second and the p50 and p99 of a pipeline in
// milliseconds.
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

// variants is how many pipelines a connection makes beforehand and sends in turn:
// making one costs more than sending it.
const variants = 200

func main() {
	addrs := flag.String("addrs", "127.0.0.1:6379", "servers, with commas between; connections take turns")
	conns := flag.Int("conns", 50, "connections")
	depth := flag.Int("depth", 1, "increments of a pipeline")
	rows := flag.Int("rows", 1_000_000, "ids are 0 to this, less one")
	duration := flag.Duration("for", 5*time.Second, "how long")
	wait := flag.Bool("wait", false, "end each pipeline with WAIT 1 1000")
	flag.Parse()

	servers := strings.Split(*addrs, ",")
	end := time.Now().Add(*duration)
	took := make([][]time.Duration, *conns)
	began := time.Now()
	var all sync.WaitGroup
	for i := range *conns {
		all.Go(func() {
			var err error
			if took[i], err = run(servers[i%len(servers)], pipelines(*depth, *rows, *wait), *depth, *wait, end); err != nil {
				log.Fatal(err)
			}
		})
	}
	all.Wait()
	elapsed := time.Since(began)
	each := slices.Concat(took...)
	slices.Sort(each)
	n := len(each) * *depth
	at := func(share float64) float64 { return each[int(share*float64(len(each)-1))].Seconds() * 1000 }
	fmt.Printf("%d %.0f %.3f %.3f\n", n, float64(n)/elapsed.Seconds(), at(0.5), at(0.99))
}

// pipelines makes what a connection sends.
func pipelines(depth, rows int, wait bool) []string {
	all := make([]string, variants)
	for i := range all {
		var b strings.Builder
		for range depth {
			key := fmt.Sprintf("posts:%012d:like", rand.IntN(rows))
			fmt.Fprintf(&b, "*2\r\n$4\r\nINCR\r\n$%d\r\n%s\r\n", len(key), key)
		}
		if wait {
			b.WriteString("*3\r\n$4\r\nWAIT\r\n$1\r\n1\r\n$4\r\n1000\r\n")
		}
		all[i] = b.String()
	}
	return all
}

// run sends pipelines until the end, each when the one before is answered, and
// returns how long each took. Every reply has to be a number, that of WAIT not 0.
func run(addr string, pipelines []string, depth int, wait bool, end time.Time) ([]time.Duration, error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	in := bufio.NewReader(conn)
	var took []time.Duration
	for i := 0; time.Now().Before(end); i++ {
		began := time.Now()
		if _, err := conn.Write([]byte(pipelines[i%len(pipelines)])); err != nil {
			return nil, err
		}
		replies := depth
		if wait {
			replies++
		}
		for n := range replies {
			line, err := in.ReadSlice('\n')
			if err != nil {
				return nil, err
			}
			if line[0] != ':' || n == depth && line[1] == '0' {
				return nil, fmt.Errorf("%s answered %q", addr, line)
			}
		}
		took = append(took, time.Since(began))
	}
	return took, nil
}
