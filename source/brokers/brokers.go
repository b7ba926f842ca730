// Package brokers opens the broker of a source by its type. Only this package knows every type.
package brokers

import (
	"fmt"

	"github.com/countd/countd/source"
	"github.com/countd/countd/source/kafka"
	"github.com/countd/countd/source/nats"
	"github.com/countd/countd/source/postgres"
	"github.com/countd/countd/source/redisstream"
)

// Open returns the broker of a configuration, which is valid. It does not connect yet.
func Open(cfg *source.Config) (source.Broker, error) {
	switch cfg.Type {
	case source.TypeKafka:
		return broker(kafka.Open(cfg))
	case source.TypeNATS:
		return broker(nats.Open(cfg))
	case source.TypePostgres:
		return broker(postgres.Open(cfg))
	case source.TypeRedis:
		return broker(redisstream.Open(cfg))
	}
	return nil, fmt.Errorf("no broker has type %s", cfg.Type)
}

// Quiet ends the logs of the clients of brokers. Call it before Open.
func Quiet() { redisstream.Quiet() }

// broker keeps a nil pointer from becoming a broker that is not nil.
func broker[B source.Broker](b B, err error) (source.Broker, error) {
	if err != nil {
		return nil, err
	}
	return b, nil
}
