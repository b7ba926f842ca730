package load

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/valyala/fasthttp"
)

// UnreadKeyspace is the keyspace of the unread numbers of users. The API has separate paths for its
// rows.
const UnreadKeyspace = "unread"

// followedByAll is the id of a user that every feed follows.
const followedByAll = 1

// userRequest is a request of a kind for which OfUsers is true. Each worker has one and reuses it.
type userRequest struct {
	*fasthttp.Request
	before, after []byte // parts of the URI around the user's id
}

// newUserRequest returns the request for cfg.Op. If cfg.Op.OfUsers() is false, the result is not
// used.
func newUserRequest(cfg *Config) userRequest {
	method, before, after := http.MethodPost, "", ""
	switch cfg.Op {
	case Poll:
		method, before, after = http.MethodGet, "/v1/poll/", pollQuery(cfg)
	case Polls:
		before = "/v1/poll"
	case Feed:
		before, after = "/v1/feed/", "/reset"
	case Seen:
		before, after = "/v1/notices/"+cfg.Channels[0]+"/users/", "/read"
	case Clear:
		before, after = "/v1/dots/"+cfg.Dots[0]+"/users/", "/clear"
	case Publish:
		before = "/v1/notices/" + cfg.Channels[0]
	case Post:
		before = "/v1/outbox/"
	case Timeline:
		method, before, after = http.MethodGet, "/v1/timeline/", fmt.Sprintf("?limit=%d&counts=posts", cfg.Page)
	}
	before = cfg.Addr.String() + before
	return userRequest{newRequest(cfg, method, before), []byte(before), []byte(after)}
}

// pollQuery returns the query of a poll, with the channels and dots. Validate has checked that
// their names need no escaping.
func pollQuery(cfg *Config) string {
	var parts []string
	if len(cfg.Channels) > 0 {
		parts = append(parts, "channels="+strings.Join(cfg.Channels, ","))
	}
	if len(cfg.Dots) > 0 {
		parts = append(parts, "dots="+strings.Join(cfg.Dots, ","))
	}
	if len(parts) == 0 {
		return ""
	}
	return "?" + strings.Join(parts, "&")
}

// prepareUser is like prepare, but for the kinds whose OfUsers is true.
func (w *worker) prepareUser() (*fasthttp.Request, *tally, int64) {
	switch w.cfg.Op {
	case Poll:
		w.nextUser()
		return w.user.Request, w.reads, 1
	case Polls:
		w.preparePolls()
		return w.user.Request, w.reads, int64(w.cfg.Page)
	case Feed:
		w.nextUser()
		return w.user.Request, w.writes, w.prepareFeed()
	case Seen, Clear:
		w.nextUser()
	case Post:
		w.nextUser()
		w.preparePost()
	case Timeline:
		w.nextUser()
		return w.user.Request, w.reads, 1
	}
	return w.user.Request, w.writes, 1
}

// nextUser puts the id of the next user into the path of the request.
func (w *worker) nextUser() {
	w.uri = strconv.AppendUint(append(w.uri[:0], w.user.before...), w.ids.next(), 10)
	w.uri = append(w.uri, w.user.after...)
	w.user.SetRequestURIBytes(w.uri)
}

// The id of a post has the seconds since postEpoch, shifted left by postTimeBits, as in the default
// --id-layout of posts. Below the seconds are the milliseconds. The low postWorkerBits bits are the
// worker's number, so that no two workers use the same id.
const (
	postEpoch      = 515_483_463
	postTimeBits   = 22
	postWorkerBits = 12
)

// Compile-time check that postWorkerBits are enough for all workers.
const _ = uint(1<<postWorkerBits - ConcurrencyMax)

// preparePost sets the body of the request to a post with a new id.
func (w *worker) preparePost() {
	now := time.Now()
	id := uint64(now.Unix()-postEpoch)<<postTimeBits | uint64(now.Nanosecond()/1e6)<<postWorkerBits | w.number
	w.post = max(id, w.post+1<<postWorkerBits)
	w.body = append(appendID(append(w.body[:0], `{"id":`...), w.post), '}')
	w.user.SetBodyRaw(w.body)
}

func (w *worker) preparePolls() {
	b := w.appendIDs(append(w.body[:0], `{"users":`...))
	b = appendNames(append(b, `,"channels":`...), w.cfg.Channels)
	b = appendNames(append(b, `,"dots":`...), w.cfg.Dots)
	w.body = append(b, '}')
	w.user.SetBodyRaw(w.body)
}

// appendNames appends names as a JSON list. The names need no escaping.
func appendNames(b []byte, names []string) []byte {
	b = append(b, '[')
	for i, name := range names {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(append(b, '"'), name...), '"')
	}
	return append(b, ']')
}

// prepareFeed sets the body of the request: the user follows followedByAll and randomly drawn
// users. It returns the number of followees.
func (w *worker) prepareFeed() int64 {
	b := append(w.body[:0], `{"followees":[`...)
	b = appendID(b, followedByAll)
	others := w.drawOthers()
	for range others {
		b = appendID(append(b, ','), 1+w.ids.rand.Uint64N(w.cfg.Authors))
	}
	w.body = append(b, "]}"...)
	w.user.SetBodyRaw(w.body)
	return int64(1 + others)
}

// drawOthers draws the number of followees other than followedByAll. It is the product of two
// exponentially distributed numbers. So most results are small and a few are very large, as on
// social networks.
func (w *worker) drawOthers() int {
	r := w.ids.rand
	return min(FolloweesMax-1, int(r.ExpFloat64()*r.ExpFloat64()*float64(w.cfg.Followees-1)+0.5))
}
