package e2e

import (
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/countd/countd/internal/proctest"
)

// likeLoad increments the likes of posts 0 to likeIDs-1 one by one. It knows how many increments of each post it has sent,
// and how many were answered.
type likeLoad struct {
	sent, answered [likeIDs]atomic.Int64
	ended          chan struct{}
	writers        sync.WaitGroup
}

const likeIDs = 60

// likeCounts has a number for each post of a likeLoad.
type likeCounts [likeIDs]int64

// beginLikes begins a load of so many writers on the nodes. Any failed increment fails the test.
func beginLikes(t *testing.T, c *proctest.Cluster, writers int) *likeLoad {
	l := &likeLoad{ended: make(chan struct{})}
	nodes := c.Nodes()
	for w := range writers {
		l.writers.Go(func() { // ends with stop
			for id := w; ; id = (id + writers) % likeIDs {
				select {
				case <-l.ended:
					return
				default:
				}
				l.sent[id].Add(1)
				body := map[string]any{"ops": []op{{fmt.Sprint(id), map[string]int64{"like": 1}}}}
				if status, err := nodes[w%len(nodes)].Call(http.MethodPost, incrPath, body, nil); err != nil || status != http.StatusOK {
					t.Errorf("increment of %d: %d, %v", id, status, err)
					return
				}
				l.answered[id].Add(1)
			}
		})
	}
	return l
}

// stop ends the load and waits for the last answers.
func (l *likeLoad) stop() {
	close(l.ended)
	l.writers.Wait()
}

// during calls take. It returns the increments that were answered before, and those that had been sent at the end: what
// take reads is between them.
func (l *likeLoad) during(take func()) (least, most likeCounts) {
	for id := range l.answered {
		least[id] = l.answered[id].Load()
	}
	take()
	for id := range l.sent {
		most[id] = l.sent[id].Load()
	}
	return least, most
}

// checkLikes checks that the likes of each post at a node are from least to most.
func checkLikes(t *testing.T, what string, at *proctest.Node, least, most likeCounts) {
	t.Helper()
	var texts []string
	for id := range least {
		texts = append(texts, fmt.Sprint(id))
	}
	for id, row := range at.Rows("posts", texts) {
		if got := row.Counts["like"]; got < least[id] || got > most[id] {
			t.Errorf("%s: id %d has %d, want %d to %d", what, id, got, least[id], most[id])
		}
	}
}
