// Command site is a small site: posts with counts and likes, a home timeline, an unread badge, views in
// batches.
//
//	go run -C examples/go . 8000 127.0.0.1:7400 …
//
// docs/GUIDE.md walks through it. The query `?as=7` stands in for the login of user 7. COUNTD_TOKEN
// is the token with which the site calls countd.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"log"
	"math/rand/v2"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/countd/countd/client"
)

// site serves the pages. views sums views in memory, and sends them as fast as the server answers.
type site struct {
	db    *client.Client
	likes client.Members
	views *client.Writer
	made  atomic.Uint32 // counter for the lower bits of post ids; starts at a random number
}

// newPostID returns an id whose high bits are the current second, so that posts of similar age have
// similar ids and can move to disk together. One process returns no id twice.
func (s *site) newPostID() client.ID {
	return client.Number(uint64(time.Now().Unix()-515483463)<<22 | uint64(s.made.Add(1)%(1<<22)))
}

func (s *site) publish(ctx context.Context, me client.ID, _ *http.Request) (any, error) {
	post := s.newPostID()
	_, err := s.db.AddPost(ctx, me, post, client.WriteOptions{})
	return map[string]client.ID{"id": post}, err
}

func (s *site) show(ctx context.Context, me client.ID, r *http.Request) (any, error) {
	post, err := client.ParseID(r.PathValue("post"))
	if err != nil {
		return nil, err
	}
	if err := s.views.Add(ctx, "posts", post, client.Delta("view", 1)); err != nil {
		return nil, err
	}
	rows, err := s.db.GetManyOf(ctx, "posts", me, []client.ID{post}, nil, client.ReadOptions{})
	if err != nil {
		return nil, err
	}
	return map[string]any{"counts": rows[0].Counts, "liked": rows[0].Member["like"]}, nil
}

func (s *site) like(ctx context.Context, me client.ID, r *http.Request) (any, error) {
	author, post, err := authorAndPost(r)
	if err != nil {
		return nil, err
	}
	liked, err := s.likes.Add(ctx, post, me)
	if err == nil && (liked.Changed || liked.Duplicate) {
		// The key makes the notice count once, however often this call is repeated and however often I tap within ten
		// minutes.
		key := client.WriteOptions{Key: "like " + post.String() + " " + me.String()}
		_, err = s.db.IncrUnread(ctx, []client.Op{{ID: author, Cells: client.Counts{client.Delta("like", 1)}}}, key)
	}
	return map[string]int64{"likes": liked.Count}, err
}

func (s *site) unlike(ctx context.Context, me client.ID, r *http.Request) (any, error) {
	_, post, err := authorAndPost(r)
	if err != nil {
		return nil, err
	}
	left, err := s.likes.Remove(ctx, post, me)
	return map[string]int64{"likes": left.Count}, err
}

func authorAndPost(r *http.Request) (author, post client.ID, err error) {
	author, err = client.ParseID(r.PathValue("author"))
	post, ofPost := client.ParseID(r.PathValue("post"))
	return author, post, errors.Join(err, ofPost)
}

func (s *site) follow(ctx context.Context, me client.ID, r *http.Request) (any, error) {
	author, err := client.ParseID(r.PathValue("author"))
	if err != nil {
		return nil, err
	}
	feed, err := s.db.Feeds().Follow(ctx, me, []client.ID{author}, client.WriteOptions{})
	return map[string]int64{"unread": feed.Unread}, err
}

// home returns the newest posts of my followees, with counts and my likes, from one call to countd.
// It then marks the posts as read.
func (s *site) home(ctx context.Context, me client.ID, _ *http.Request) (any, error) {
	page, err := s.db.Timeline(ctx, me, client.PostQuery{Counts: "posts", Member: []string{"like"}}, client.ReadOptions{})
	shown := []map[string]any{}
	for _, p := range page.Posts {
		err = errors.Join(err, s.views.Add(ctx, "posts", p.ID, client.Delta("view", 1)))
		shown = append(shown, map[string]any{"id": p.ID, "author": p.Author, "counts": p.Counts, "liked": p.Member["like"]})
	}
	if err == nil && len(page.Posts) > 0 {
		_, err = s.db.Feeds().ResetUpTo(ctx, me, page.Posts[0].ID, client.WriteOptions{})
	}
	return shown, err
}

func (s *site) badge(ctx context.Context, me client.ID, _ *http.Request) (any, error) {
	poll, err := s.db.Poll(ctx, me, nil, nil, client.ReadOptions{})
	likes, _ := poll.Unread.Get("like")
	return map[string]int64{"likes": likes, "posts": poll.Feed}, err
}

// seen subtracts the number of likes that I was shown, so that later likes stay unread.
func (s *site) seen(ctx context.Context, me client.ID, r *http.Request) (any, error) {
	shown, err := strconv.ParseInt(r.PathValue("likes"), 10, 64)
	if err != nil {
		return nil, err
	}
	left, err := s.db.ResetSeen(ctx, me, client.Counts{client.Delta("like", shown)}, client.WriteOptions{})
	likes, _ := left.Counts.Get("like")
	return map[string]int64{"likes": likes}, err
}

// page serves a page of the site as JSON.
func page(show func(context.Context, client.ID, *http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		me, err := client.ParseID(r.URL.Query().Get("as"))
		var answer any
		if err == nil {
			answer, err = show(r.Context(), me, r)
		}
		refused := new(client.Error)
		switch {
		case errors.Is(err, client.ErrBadID), errors.As(err, &refused) && refused.Code == "invalid_argument":
			w.WriteHeader(http.StatusBadRequest)
		case err != nil && client.Retryable(err):
			w.WriteHeader(http.StatusServiceUnavailable)
		case err != nil:
			w.WriteHeader(http.StatusInternalServerError)
		}
		if err != nil {
			answer = map[string]string{"error": err.Error()}
		}
		_ = json.NewEncoder(w).Encode(answer) // ignore the error: the client may have disconnected
	}
}

func main() {
	// With these settings, a page fails within seconds. By default, the client would repeat a call
	// for 30 s.
	db, err := client.New(client.Config{
		Addrs: os.Args[2:], Token: os.Getenv("COUNTD_TOKEN"), Timeout: time.Second, Retry: client.Retry{For: time.Second},
	})
	if err != nil {
		log.Fatal(err)
	}
	views, err := db.NewWriter(client.WriterConfig{RetryFor: 10 * time.Second, OnFailure: func(f client.Failure) {
		log.Printf("lost %d views of post %s: %v", f.Op.Cells[0].Value, f.Op.ID, f.Err)
	}})
	if err != nil {
		log.Fatal(err)
	}
	s := &site{db: db, likes: db.Members("posts", "like"), views: views}
	s.made.Store(rand.Uint32())
	http.Handle("POST /posts", page(s.publish))
	http.Handle("GET /posts/{post}", page(s.show))
	http.Handle("POST /users/{author}/posts/{post}/like", page(s.like))
	http.Handle("DELETE /users/{author}/posts/{post}/like", page(s.unlike))
	http.Handle("POST /users/{author}/follow", page(s.follow))
	http.Handle("GET /home", page(s.home))
	http.Handle("GET /badge", page(s.badge))
	http.Handle("POST /badge/seen/{likes}", page(s.seen))
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	server := &http.Server{Addr: "127.0.0.1:" + os.Args[1], ReadHeaderTimeout: 10 * time.Second}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		log.Fatal(err)
	}
	_ = views.Close(context.Background()) // sends the views that are still in memory; OnFailure reports those that are lost
}
