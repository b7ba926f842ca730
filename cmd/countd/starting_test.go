package main

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/countd/countd/shard"
	"github.com/countd/countd/shard/errs"
)

// Before the node is open:
//
//  1. the servers know no keyspace, so they refuse calls to a keyspace;
//  2. other calls fail with ErrNoLeader, and the error states what the node waits for.
func TestStartingRefuses(t *testing.T) {
	var s starting
	s.waitFor(theStart)
	s.waitFor(func() string { return "two more nodes" })
	if len(s.Keyspaces()) > 0 || s.Keyspace("posts") != nil || len(s.Status().Nodes) > 0 {
		t.Error("it knows a keyspace or a node")
	}
	ctx := context.Background()
	for name, call := range map[string]func() error{
		"ready":      s.Ready,
		"catch up":   func() error { return s.CatchUp(ctx) },
		"create":     func() error { _, err := s.CreateKeyspace(ctx, shard.Keyspace{}); return err },
		"columns":    func() error { _, err := s.AddColumns(ctx, "posts", nil); return err },
		"everywhere": func() error { _, err := s.ChangeSetting(ctx, "posts", "", nil); return err },
		"drop":       func() error { _, err := s.DropKeyspace(ctx, "posts"); return err },
		"column":     func() error { _, err := s.DropColumn(ctx, "posts", "like"); return err },
		"opened":     func() error { _, err := s.opened(); return err },
	} {
		if err := call(); !errors.Is(err, errs.ErrNoLeader) || !strings.Contains(err.Error(), "waits for two more nodes") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
