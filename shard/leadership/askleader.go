package leadership

import (
	"context"
	"errors"
	"fmt"

	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/rpc"
)

// AskLeader calls a method of CatalogConfig.Handlers on the node that leads the catalog, which may be
// this node. It may send the call more than once. If there is no leader until ctx ends, it returns
// errs.ErrNoLeader.
func (c *CatalogClient) AskLeader(ctx context.Context, method string, request []byte) ([]byte, error) {
	var answer []byte
	var err error
	asked := errs.RetryUntil(ctx, func() bool {
		answer, err = c.askLeader(ctx, method, request)
		return err == nil || !askedInVain(err) || c.cfg.Draining.Load()
	})
	if !asked {
		return nil, fmt.Errorf("%w: %w", errs.ErrNoLeader, err)
	}
	return answer, err
}

func (c *CatalogClient) askLeader(ctx context.Context, method string, request []byte) ([]byte, error) {
	leader, err := c.leader()
	if err != nil {
		return nil, err
	}
	if leader != c.cfg.Key {
		return c.cfg.Calls.Call(ctx, leader, method, request)
	}
	if handle := c.cfg.Handlers[method]; handle != nil {
		return handle(ctx, request)
	}
	return nil, fmt.Errorf("%w: %s", rpc.ErrNoMethod, method)
}

// leader returns the key of the node that leads the catalog. It returns this node's own key only
// if this node may serve as the leader.
func (c *CatalogClient) leader() (string, error) {
	if c.cfg.Draining.Load() {
		return "", errs.ErrDraining
	}
	if c.cfg.Group().Ready() == nil {
		return c.cfg.Key, nil
	}
	leader := c.cfg.Group().Leader()
	if leader == "" || leader == c.cfg.Key {
		return "", errs.ErrNoLeader
	}
	return leader, nil
}

// askedInVain reports whether a call failed because no leader answered it.
func askedInVain(err error) bool {
	return errors.Is(err, rpc.ErrNotSent) || errors.Is(err, rpc.ErrCallLost) || errors.Is(err, errs.ErrNoLeader) || errors.Is(err, errs.ErrDraining)
}
