//go:build !race

// The benchmarks use nodes of alloc_test.go.

package api

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"
)

// BenchmarkTextIDs compares requests with UUIDs in the cache of names with the same requests with
// numbers, in turns, over a node that answers at once. The metric "ratio" is the time of texts over the
// time of numbers. First writes also look for the names, and assign them.
func BenchmarkTextIDs(b *testing.B) {
	for _, c := range []struct {
		name, path string
		ids        int
		body       func(ids []string) string
		forgets    bool
	}{
		{"page of 20", "/get", 20, func(ids []string) string { return `{"ids":["` + strings.Join(ids, `","`) + `"]}` }, false},
		{"increment", "/incr", 1, incrementsOf, false},
		{"100 increments", "/incr", 100, incrementsOf, false},
		{"first increment", "/incr", 1, incrementsOf, true},
	} {
		b.Run(c.name, func(b *testing.B) {
			l := startTexts(b)
			quiet := quietTexts{quietNode{l.node, nil}, l.node}
			l.server.Attach(quiet)
			numbers, texts := make([]string, c.ids), make([]string, c.ids)
			for i := range numbers {
				numbers[i] = strconv.Itoa(4467107636950632 + i)
				texts[i] = uuid[:28] + fmt.Sprintf("%08x", i)
			}
			serve := func(keyspace, path, body string) func() {
				ctx, text := newCall("POST", "/v1/counters/"+keyspace+path, body), []byte(body)
				return func() {
					ctx.Request.SetBodyRaw(text) // serve resets the body
					if l.server.serve(ctx); ctx.Response.StatusCode() != 200 {
						b.Fatalf("answered %d %s", ctx.Response.StatusCode(), ctx.Response.Body())
					}
				}
			}
			number, text := serve("plain", c.path, c.body(numbers)), serve("articles", c.path, c.body(texts))
			serve("articles", "/incr", incrementsOf(texts))() // so that they have names
			var ofNumbers, ofTexts time.Duration
			for b.Loop() {
				if c.forgets {
					b.StopTimer()
					l.server.Attach(quiet)
					b.StartTimer()
				}
				began := time.Now()
				number()
				between := time.Now()
				text()
				ofNumbers, ofTexts = ofNumbers+between.Sub(began), ofTexts+time.Since(between)
			}
			b.ReportMetric(float64(ofTexts)/float64(ofNumbers), "ratio")
		})
	}
}

func incrementsOf(ids []string) string {
	ops := make([]string, len(ids))
	for i, id := range ids {
		ops[i] = `{"id":"` + id + `","add":{"like":1}}`
	}
	return opsOf(ops...)
}
