package api

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// pollUsers is the number of users in TestPollsAtOnce. User n follows 5·n authors, has n+1 likes,
// and has read one of the channels before that channel had a notice.
const pollUsers = 40

var (
	pollChannels = [...]string{"a", "bb", "ccc", "d"}
	pollDots     = [...]string{"x", "yy", "zzz"}
)

// send returns the answer to a request; any goroutine may call it.
func (l *fakeServer) send(method, path, body string) string {
	got, err := l.try(method, path, strings.NewReader(body))
	if err != nil || got.status != 200 {
		l.t.Errorf("%s %s: %v, %d %s", method, path, err, got.status, got.body)
	}
	return got.body
}

// seedPolls makes the posts, notices and dots of the polls.
func (l *fakeServer) seedPolls() {
	var posts []string
	for user := range pollUsers {
		l.send("POST", fmt.Sprintf("/v1/feed/%d/reset", user), `{"followees":[`+ids(user*5)+`]}`)
		l.send("POST", "/v1/unread/incr", fmt.Sprintf(`{"ops":[{"user":%d,"add":{"like":%d}}]}`, user, user+1))
		l.send("POST", fmt.Sprintf("/v1/notices/%s/users/%d/read", pollChannels[user%len(pollChannels)], user), "")
	}
	for id := range pollUsers * 5 {
		posts = append(posts, fmt.Sprintf(`{"id":%d,"add":{"posts":%d}}`, id, id%17))
	}
	l.send("POST", "/v1/counters/users/incr", `{"ops":[`+strings.Join(posts, ",")+`]}`)
	for i, channel := range pollChannels {
		for range i + 1 {
			l.send("POST", "/v1/notices/"+channel, "")
		}
	}
	l.send("POST", "/v1/dots/"+pollDots[1]+"/fire", "")
}

// pollNumber returns the ith of many polls. A poll is for one or several users. It has 1 to 3
// channels, and up to 3 dots. One of the channels may not exist.
func pollNumber(i int) (method, path, body string) {
	channels := []string{pollChannels[i%4], "none" + strconv.Itoa(i%5), pollChannels[(i+1)%4]}[:1+i%3]
	dots := pollDots[:i%4]
	if i%2 == 0 {
		query := "?consistency=linearizable&channels=" + strings.Join(channels, ",") + "&dots=" + strings.Join(dots, ",")
		return "GET", fmt.Sprintf("/v1/poll/%d%s", i%pollUsers, query), ""
	}
	var users []string
	for j := range 1 + i*7%pollUsers {
		users = append(users, strconv.Itoa((i*3+j)%pollUsers))
	}
	body = fmt.Sprintf(`{"users":[%s],"channels":%s,"dots":%s}`, strings.Join(users, ","), quoted(channels), quoted(dots))
	return "POST", "/v1/poll?consistency=linearizable", body
}

func quoted(names []string) string {
	list := make([]string, len(names))
	for i, name := range names {
		list[i] = strconv.Quote(name)
	}
	return "[" + strings.Join(list, ",") + "]"
}

// TestPollsAtOnce: successive requests reuse memory. Nevertheless,
//
//  1. concurrent polls, each for different users and names, get the same answers as when they run
//     alone;
//  2. a poll that is refused halfway leaves no data in the shared memory;
//  3. no answer contains concurrent writes to other users.
func TestPollsAtOnce(t *testing.T) {
	t.Parallel()
	const polls, readers = 60, 6
	l := startReal(t)
	l.seedPolls()
	alone := make([]string, polls)
	for i := range alone {
		alone[i] = l.send(pollNumber(i))
	}
	if !strings.Contains(alone[38], `"feed":1`) {
		t.Fatalf("this shows too little: %s", alone[38])
	}
	stop := make(chan struct{})
	var writer, reading sync.WaitGroup
	writer.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			l.send("POST", fmt.Sprintf("/v1/feed/%d/reset", 5000+i%50), `{"followees":[`+ids(1+i%300)+`]}`)
			l.send("POST", "/v1/unread/incr", fmt.Sprintf(`{"ops":[{"user":%d,"add":{"at":3}}]}`, 5000+i%50))
		}
	})
	for reader := range readers {
		reading.Go(func() {
			for round := range polls {
				i := (round*(2*reader+1) + reader) % polls
				method, path, body := pollNumber(i)
				if got := l.send(method, path, body); got != alone[i] {
					t.Errorf("%s %s %s: %.300s\nalone %.300s", method, path, body, got, alone[i])
				}
				if round%5 == 0 {
					_, _ = l.try("POST", "/v1/poll", strings.NewReader(`{"users":[1,2,3],"channels":["never","seen"],"dots":["x","x"]}`))
				}
			}
		})
	}
	reading.Wait()
	close(stop)
	writer.Wait()
}
