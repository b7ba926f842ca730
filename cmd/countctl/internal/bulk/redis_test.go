package bulk

import (
	"net/http"
	"testing"

	"github.com/countd/countd/client"
	"github.com/countd/countd/internal/nodetest"
)

// All writes of a run have the same producer and rising numbers. A retry has the number of its
// first try. The import does not use idempotency keys, because so many keys would displace those of
// other clients in the shards.
func TestWritesAreOfOneProducer(t *testing.T) {
	server := nodetest.New(t)
	var producers, seqs []string
	server.SetFail(func(r *http.Request, _ []byte) *nodetest.Fault {
		producers = append(producers, r.Header.Get("Countd-Producer"))
		if seqs = append(seqs, r.Header.Get("Countd-Seq")); len(seqs) == 1 {
			return &nodetest.Fault{Status: 503, Code: "no_leader"}
		}
		return nil
	})
	c, err := client.New(client.Config{Addrs: []string{server.URL}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	i := NewRedisImport(RedisConfig{Client: c, Batch: 1})
	for id := range uint64(2) {
		p := &page{pattern: &Pattern{Keyspace: "posts"}, ops: []client.Op{{ID: client.Number(id), Cells: client.Counts{{Column: "like", Value: 7}}}}}
		if err := i.write(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	if len(seqs) != 3 || seqs[0] != "1" || seqs[1] != "1" || seqs[2] != "2" {
		t.Errorf("numbers %q", seqs)
	}
	for _, producer := range producers {
		if producer == "" || producer != producers[0] {
			t.Errorf("producers %q", producers)
		}
	}
}
