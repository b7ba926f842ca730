package main

import (
	"errors"
	"fmt"
	"net"
	"syscall"
)

// ports holds the listeners of a node; redis may be nil. The server that uses a listener
// closes it.
type ports struct{ http, cluster, redis net.Listener }

// listen opens all the ports or none.
func listen(c *config) (ports, error) {
	var l ports
	var err error
	if l.http, err = listenAt("for HTTP", "http-addr", c.HTTPAddr); err != nil {
		return ports{}, err
	}
	if l.cluster, err = listenCluster(c); err != nil {
		l.close()
		return ports{}, err
	}
	if c.RedisAddr != "" {
		if l.redis, err = listenAt("for Redis clients", "redis-addr", c.RedisAddr); err != nil {
			l.close()
			return ports{}, err
		}
	}
	return l, nil
}

func listenCluster(c *config) (net.Listener, error) {
	return listenAt("on the cluster address", "cluster-addr", c.ClusterAddr)
}

// listenAt listens at the address of a setting. what completes the error "cannot listen …".
func listenAt(what, setting, addr string) (net.Listener, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		if errors.Is(err, syscall.EADDRINUSE) {
			err = inUse(err, setting)
		}
		return nil, fmt.Errorf("cannot listen %s: %w", what, err)
	}
	return l, nil
}

// taken reports whether an address is in use for TCP or UDP. startGossip needs this check, because
// the errors of gossip do not wrap EADDRINUSE.
func taken(addr string) bool {
	l, err := net.Listen("tcp", addr)
	if err == nil {
		l.Close()
	}
	p, errUDP := net.ListenPacket("udp", addr)
	if errUDP == nil {
		p.Close()
	}
	return errors.Is(err, syscall.EADDRINUSE) || errors.Is(errUDP, syscall.EADDRINUSE)
}

// inUse adds the remedy to the error of an address that another process uses.
func inUse(err error, setting string) error {
	return fmt.Errorf("%w: another process has it; choose another one with --%s", err, setting)
}

// close closes the ports; it ignores ports that are closed already.
func (l ports) close() {
	for _, one := range []net.Listener{l.http, l.cluster, l.redis} {
		if one != nil {
			one.Close()
		}
	}
}
