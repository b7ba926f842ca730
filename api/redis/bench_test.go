package redis

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"
)

// BenchmarkPipeline has 50 clients send pipelines over real sockets to a real node. Its CPU time
// includes that of the clients, which do little work.
func BenchmarkPipeline(b *testing.B) { pipelines(b, 1_000_000, false) }

// BenchmarkTextPipeline does the same with texts whose numbers are in memory.
func BenchmarkTextPipeline(b *testing.B) { pipelines(b, 50_000, true) }

func pipelines(b *testing.B, rows int, texts bool) {
	node := openNode(b, texts)
	key := "posts:%d:like"
	if texts {
		key = "posts:8f14e45f-ceea-467f-9575-%012x:like"
	}
	s := serve(b, node, nil)
	fill := dial(b, s)
	for from := 0; from < rows; from += 5000 {
		line := []byte("COUNTD.INCR")
		for id := from; id < from+5000; id++ {
			line = fmt.Appendf(line, " "+key+" 1", id)
		}
		fill.do(string(line))
	}
	random := func() int { return rand.IntN(rows) }
	fill.do("COUNTD.NOTICE.PUBLISH news", "COUNTD.DOT.FIRE shop")
	for _, command := range []struct {
		name  string
		line  func() string
		lines int // lines of the reply
	}{
		{"GET", func() string { return fmt.Sprintf("GET "+key, random()) }, 2},
		{"MGET20", func() string {
			line := "MGET"
			for range 20 {
				line += fmt.Sprintf(" "+key, random())
			}
			return line
		}, 41},
		{"POLL", func() string { return fmt.Sprintf("COUNTD.POLL %d CHANNELS 1 news DOTS 1 shop", random()) }, 31},
		{"INCR", func() string { return fmt.Sprintf("INCR "+key, random()) }, 1},
	} {
		for _, depth := range []int{1, 16, 100} {
			b.Run(fmt.Sprintf("%s/%d", command.name, depth), func(b *testing.B) {
				b.SetParallelism(25) // 50 clients on 2 processors
				b.RunParallel(func(pb *testing.PB) {
					c := dial(b, s)
					defer c.conn.Close()
					in := bufio.NewReaderSize(c.conn, 64<<10)
					var pipelines []string
					for range 8 {
						var all string
						for range depth {
							all += wire(command.line())
						}
						pipelines = append(pipelines, all)
					}
					for i := 0; ; i++ {
						n := 0
						for n < depth && pb.Next() {
							n++
						}
						if n == 0 {
							return
						}
						if _, err := io.WriteString(c.conn, pipelines[i%len(pipelines)]); err != nil {
							b.Error(err)
							return
						}
						for range depth * command.lines {
							if _, err := in.ReadSlice('\n'); err != nil {
								b.Error(err)
								return
							}
						}
					}
				})
			})
		}
	}
}
