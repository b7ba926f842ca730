package main

import (
	"fmt"

	"github.com/countd/countd/source"
	"github.com/countd/countd/source/kafka"
	"github.com/countd/countd/source/nats"
	"github.com/countd/countd/source/postgres"
	"github.com/countd/countd/source/redisstream"
)

// openBroker reads the files that a valid configuration names, and returns its broker. It does not
// connect yet.
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

// broker returns a nil interface if there is an error. A nil pointer of type B would make a Broker
// that is not nil.
func broker[B source.Broker](b B, err error) (source.Broker, error) {
	if err != nil {
		return nil, err
	}
	return b, nil
}
