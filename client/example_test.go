package client_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"

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
	row, err := c.Incr(ctx, "posts", 104, client.Delta("like", 1))
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
		{Keyspace: "posts", ID: 101, Add: client.Counts{client.Delta("comment", 1)}},
		{Keyspace: "unread", ID: 7, Add: client.Counts{client.Delta("comment", 1)}},
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
	liked, err := likes.Add(ctx, 104, 7)
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
	for like, err := range likes.All(ctx, 104, client.ReadOptions{}) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(like.Member, like.At)
	}
	// Output: 7 2026-11-22 12:00:00 +0000 UTC
}
