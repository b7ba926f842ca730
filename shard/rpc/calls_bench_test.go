package rpc

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
)

// BenchmarkCall makes one call after the other over loopback; both sides are in this process.
func BenchmarkCall(b *testing.B) {
	for _, size := range []int{16, 4 << 10, 256 << 10, 4 << 20} {
		b.Run(fmt.Sprintf("%dB", size), func(b *testing.B) {
			var nodes callNodes
			from := nodes.node(b, "a", nil)
			nodes.node(b, "b", nil)
			request := make([]byte, size)
			ctx := context.Background()
			b.SetBytes(2 * int64(size))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := from.Call(ctx, "b", "echo", request); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkCall64 makes 64 calls at once, without and with a batcher in front of them.
func BenchmarkCall64(b *testing.B) {
	const callers, bytes = 64, 100
	var nodes callNodes
	from := nodes.node(b, "a", nil)
	nodes.node(b, "b", nil)
	question := make([]byte, bytes)
	ask := func(b *testing.B, do func(context.Context) error) {
		var wg sync.WaitGroup
		turns := make(chan struct{}, callers)
		b.ReportAllocs()
		b.ResetTimer()
		for range callers {
			wg.Go(func() {
				for range turns {
					if err := do(context.Background()); err != nil {
						b.Error(err)
					}
				}
			})
		}
		for range b.N {
			turns <- struct{}{}
		}
		close(turns)
		wg.Wait()
	}
	b.Run("calls", func(b *testing.B) {
		ask(b, func(ctx context.Context) error {
			_, err := from.Call(ctx, "b", "echo", question)
			return err
		})
	})
	b.Run("lane", func(b *testing.B) {
		var sends, asked atomic.Int64
		l := NewBatcher(BatcherConfig[[]byte, []byte]{
			InFlight: 2, Items: 1 << 16, Bytes: 16 << 20, CallItems: 4096, CallBytes: 256 << 10,
			Size: func(q []byte) int { return len(q) },
			Send: func(ctx context.Context, batch [][]byte) ([][]byte, error) {
				sends.Add(1)
				asked.Add(int64(len(batch)))
				request := make([]byte, 0, bytes*len(batch))
				for _, q := range batch {
					request = append(request, q...)
				}
				answer, err := from.Call(ctx, "b", "echo", request)
				answers := make([][]byte, 0, len(batch))
				for ; len(answer) >= bytes; answer = answer[bytes:] {
					answers = append(answers, answer[:bytes])
				}
				return answers, err
			},
		})
		defer l.Close()
		ask(b, func(ctx context.Context) error {
			_, err := l.Do(ctx, question)
			return err
		})
		b.ReportMetric(float64(asked.Load())/float64(max(sends.Load(), 1)), "items/call")
	})
}
