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

// Open returns the broker of a configuration, which is valid, and reads the files that it names. It
// does not connect yet.
func Open(cfg *source.Config, secrets source.Secrets) (source.Broker, error) {
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

// Quiet ends the logs of the clients of brokers. Call it before Open.
func Quiet() { redisstream.Quiet() }

// broker keeps a nil pointer from becoming a broker that is not nil.
func broker[B source.Broker](b B, err error) (source.Broker, error) {
	if err != nil {
		return nil, err
	}
	return b, nil
}
