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

// Open reads the files that a valid configuration names, and returns its broker. It does not
// connect yet.
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

// Quiet turns off the logs of the brokers' client libraries. Call it before Open.
func Quiet() { redisstream.Quiet() }

// broker returns a nil interface if there is an error. A nil pointer of type B would make a Broker
// that is not nil.
func broker[B source.Broker](b B, err error) (source.Broker, error) {
	if err != nil {
		return nil, err
	}
	return b, nil
}
