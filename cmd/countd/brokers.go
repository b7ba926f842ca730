package main

import (
	"fmt"

	"github.com/countd/countd/source"
	"github.com/countd/countd/source/kafka"
	"github.com/countd/countd/source/nats"
	"github.com/countd/countd/source/postgres"
	"github.com/countd/countd/source/redisstream"
)

// openBroker returns the broker of a valid configuration. It reads the files that the configuration
// names, but does not connect.
func openBroker(cfg *source.Config, secrets source.Secrets) (source.Broker, error) {
	access, err := secrets.Access(cfg)
	if err != nil {
		return nil, err
	}
	switch cfg.Type {
	case source.TypeKafka:
		return broker(kafka.Open(cfg, access))
	case source.TypeNATS:
		return broker(nats.Open(cfg, access))
	case source.TypePostgres:
		return broker(postgres.Open(cfg, access))
	case source.TypeRedis:
		return broker(redisstream.Open(cfg, access))
	}
	return nil, fmt.Errorf("no broker has type %s", cfg.Type)
}

// broker converts b to a Broker. If there is an error, it returns a nil interface: a nil pointer of
// type B would become a Broker that is not nil.
func broker[B source.Broker](b B, err error) (source.Broker, error) {
	if err != nil {
		return nil, err
	}
	return b, nil
}
