package main

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/countd/countd/api/redis"
	"github.com/countd/countd/internal/version"
)

// openRedis starts to serve clients of Redis, if there is a listener for them.
func (p *process) openRedis(l net.Listener) error {
	if l == nil {
		return nil
	}
	server, err := redis.New(redis.Config{
		Backend: &p.starting, Auth: p.auth, Listener: l, Version: version.String(), Registry: p.registry, Logger: p.logger,
	})
	if err != nil {
		return fmt.Errorf("cannot make Redis server: %w", err)
	}
	p.redis = server
	go func() { p.served <- server.Serve() }() // ended by stop
	return nil
}

// shutServers makes both servers finish the requests in flight.
func (p *process) shutServers(ctx context.Context) error {
	ended := make(chan error, 1)
	go func() { // ends with ctx at the latest
		if p.redis == nil {
			ended <- nil
			return
		}
		ended <- p.redis.Shutdown(ctx)
	}()
	var err error
	if p.server != nil {
		err = p.server.Shutdown(ctx)
	}
	return errors.Join(err, <-ended)
}
