package shard

import (
	"context"
	"errors"
	"fmt"

	"github.com/countd/countd/shard/rpc"
)

// AskCatalogLeader has the node that leads the catalog, this or another, answer
// a call of Config.Handlers. The call is one that may be repeated. It waits for a
// leader until ctx ends, and then returns ErrNoLeader.
func (n *Node) AskCatalogLeader(ctx context.Context, method string, request []byte) ([]byte, error) {
	var answer []byte
	var err error
	asked := tryUntil(ctx, func() bool {
		answer, err = n.catalogClient.askCatalogLeader(ctx, method, request)
		return err == nil || !askedInVain(err) || n.draining.Load()
	})
	if !asked {
		return nil, fmt.Errorf("%w: %w", ErrNoLeader, err)
	}
	return answer, err
}

func (c *catalogClient) askCatalogLeader(ctx context.Context, method string, request []byte) ([]byte, error) {
	if c.draining.Load() {
		return nil, ErrDraining
	}
	if c.registry.meta.Ready() == nil {
		handle := c.cfg.Handlers[method]
		if handle == nil {
			return nil, fmt.Errorf("%w: %s", rpc.ErrNoMethod, method)
		}
		return handle(ctx, request)
	}
	leader := c.registry.meta.Leader()
	if leader == "" || leader == c.cfg.NodeKey {
		return nil, ErrNoLeader
	}
	return c.calls.Call(ctx, leader, method, request)
}

// askedInVain reports whether a call met nobody who could answer it.
func askedInVain(err error) bool {
	return errors.Is(err, rpc.ErrNotSent) || errors.Is(err, rpc.ErrCallLost) || errors.Is(err, ErrNoLeader) || errors.Is(err, ErrDraining)
}
