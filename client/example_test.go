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
