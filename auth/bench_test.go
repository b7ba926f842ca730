package auth

import (
	"strings"
	"testing"
	"time"
)

// BenchmarkIdentify measures the additional cost of a call with a token over a call without --auth,
// and the cost of a refused call.
func BenchmarkIdentify(b *testing.B) {
	c := newFakeCluster()
	a := authorizerOf(b, Enforce, c)
	web, _ := tokenOf(b, c, "web", 0, grant("writer", "posts"))
	need, keyspace := Need{Access: Write, In: InPath}, []byte("posts")
	for _, one := range []struct {
		name  string
		token []byte
	}{{"good", web}, {"wrong", []byte("ctd_k1_" + strings.Repeat("0", 64))}} {
		b.Run(one.name, func(b *testing.B) {
			b.ReportAllocs()
			now := time.Now()
			for b.Loop() {
				if caller, why := a.Identify(one.token, now); why == Granted && !caller.Allows(&need, keyspace) {
					b.Fatal("it may not")
				}
			}
		})
	}
}
