package client_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"

	"github.com/countd/countd/client"
)

// exampleServer answers every call with a text.
func exampleServer(text string) *httptest.Server {
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, text)
	}))
}

func ExampleClient_Incr() {
	server := exampleServer(`{"results":[{"id":"104","counts":{"like":1}}],"duplicate":false,"token":"T"}`)
	defer server.Close()
	ctx := context.Background()
	c, err := client.New(client.Config{Addrs: []string{server.URL}})
	if err != nil {
		fmt.Println(err)
		return
	}
	row, err := c.Incr(ctx, "posts", client.Number(104), client.Delta("like", 1))
	if err != nil {
		fmt.Println(err)
		return
	}
	likes, _ := row.Counts.Get("like")
	fmt.Println(row.ID, likes)
	// Output: 104 1
}

func ExampleClient_Ops() {
	server := exampleServer(`{"results":[{"id":"101","counts":{"comment":1}},{"user":"7","counts":{"comment":1}}],"duplicate":false,"token":"T"}`)
	defer server.Close()
	c, err := client.New(client.Config{Addrs: []string{server.URL}})
	if err != nil {
		fmt.Println(err)
		return
	}
	result, err := c.Ops(context.Background(), []client.KeyspaceOp{
		{Keyspace: "posts", ID: client.Number(101), Add: client.Counts{client.Delta("comment", 1)}},
		{Keyspace: "unread", ID: client.Number(7), Add: client.Counts{client.Delta("comment", 1)}},
	}, client.WriteOptions{Key: "comment-9001"})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, one := range result.Results {
		fmt.Println(one.ID, one.Counts)
	}
	// Output:
	// 101 [{comment 1}]
	// 7 [{comment 1}]
}

func ExampleMembers_Add() {
	server := exampleServer(`{"results":[{"id":"104","member":"7","changed":true,"count":1}],"duplicate":false,"token":"T"}`)
	defer server.Close()
	ctx := context.Background()
	c, err := client.New(client.Config{Addrs: []string{server.URL}})
	if err != nil {
		fmt.Println(err)
		return
	}
	likes := c.Members("posts", "like")
	liked, err := likes.Add(ctx, client.Number(104), client.Number(7))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(liked.Changed, liked.Count)
	// Output: true 1
}

func ExampleMembers_All() {
	server := exampleServer(`{"id":"104","count":1,"members":[{"member":"7","at":"2026-11-22T12:00:00Z"}]}`)
	defer server.Close()
	ctx := context.Background()
	c, err := client.New(client.Config{Addrs: []string{server.URL}})
	if err != nil {
		fmt.Println(err)
		return
	}
	likes := c.Members("posts", "like")
	for like, err := range likes.All(ctx, client.Number(104), client.ReadOptions{}) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(like.Member, like.At)
	}
	// Output: 7 2026-11-22 12:00:00 +0000 UTC
}

func ExampleClient_AddPost() {
	server := exampleServer(`{"changed":true,"posts":1,"duplicate":false,"token":"T"}`)
	defer server.Close()
	c, err := client.New(client.Config{Addrs: []string{server.URL}})
	if err != nil {
		fmt.Println(err)
		return
	}
	// Author 2 publishes post 501. A service that repeats the call after a crash uses the same key.
	added, err := c.AddPost(context.Background(), client.Number(2), client.Number(501), client.WriteOptions{Key: "post-501"})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(added.Changed, added.Posts)
	// Output: true 1
}

func ExampleClient_Timeline() {
	server := exampleServer(`{"posts":[{"id":"501","author":"2","counts":{"like":3,"view":20},"member":{"like":true}}],"cursor":"501.2"}`)
	defer server.Close()
	c, err := client.New(client.Config{Addrs: []string{server.URL}})
	if err != nil {
		fmt.Println(err)
		return
	}
	// Read the newest posts by the followees of user 7, with the counts, and with whether the user likes
	// each post.
	query := client.PostQuery{Limit: 1, Counts: "posts", Member: []string{"like"}}
	page, err := c.Timeline(context.Background(), client.Number(7), query, client.ReadOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, post := range page.Posts {
		likes, _ := post.Counts.Get("like")
		fmt.Println(post.ID, post.Author, likes, post.Member["like"])
	}
	query.Cursor = page.Cursor // for the next page
	fmt.Println(query.Cursor)
	// Output:
	// 501 2 3 true
	// 501.2
}

func ExampleClient_Poll() {
	server := exampleServer(`{"unread":{"comment":2},"notices":{"news":1},"dots":{"shop":true},"feed":7}`)
	defer server.Close()
	c, err := client.New(client.Config{Addrs: []string{server.URL}})
	if err != nil {
		fmt.Println(err)
		return
	}
	poll, err := c.Poll(context.Background(), client.Number(7), []string{"news"}, []string{"shop"}, client.ReadOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	comments, _ := poll.Unread.Get("comment")
	fmt.Println(comments, poll.Notices["news"], poll.Dots["shop"], poll.Feed)
	// Output: 2 1 true 7
}

func ExampleWriter() {
	var views atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var batch struct {
			Ops []struct {
				Add map[string]int64 `json:"add"`
			} `json:"ops"`
		}
		_ = json.NewDecoder(r.Body).Decode(&batch)
		for _, op := range batch.Ops {
			views.Add(op.Add["view"])
		}
		_, _ = io.WriteString(w, `{"applied":1,"duplicate":false,"token":"T"}`)
	}))
	defer server.Close()
	ctx := context.Background()
	c, err := client.New(client.Config{Addrs: []string{server.URL}})
	if err != nil {
		fmt.Println(err)
		return
	}
	w, err := c.NewWriter(client.WriterConfig{
		OnFailure: func(f client.Failure) { fmt.Println("not counted:", f.Op.ID, f.Err) },
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 100 {
		if err := w.Add(ctx, "posts", client.Number(104), client.Delta("view", 1)); err != nil {
			fmt.Println(err)
			return
		}
	}
	if err := w.Close(ctx); err != nil { // waits until all is counted
		fmt.Println(err)
		return
	}
	fmt.Println(views.Load())
	// Output: 100
}
